"""Cases for tests/integration/client_test.py, run under a Python that has the openai package.

Usage: openai_client.py BASE_URL CASE... ; prints one JSON object {case: result}. The key is $OPENAI_API_KEY, or none.
"""
import asyncio
import json
import os
import sys

import openai

URL = sys.argv[1]
KEY = os.environ.get("OPENAI_API_KEY") or "none"
CLIENT = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=60)
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello there"}]
FORCED = {"ignore_eos": True}  # tiny models end when they like; lengths are compared


def chat(**fields):
    args = dict({"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 12, "extra_body": FORCED}, **fields)
    return CLIENT.chat.completions.create(**args)


def completion(**fields):
    args = dict({"model": "tiny", "prompt": "once upon a time", "temperature": 0, "max_tokens": 12, "extra_body": FORCED},
                **fields)
    return CLIENT.completions.create(**args)


def numbers(usage):
    return {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens}


def case_chat():
    a = chat()
    return {"text": a.choices[0].message.content, "finish": a.choices[0].finish_reason, "usage": numbers(a.usage)}


def case_chat_stream():
    text, roles, finish, usage, chunks = "", [], None, None, 0
    for chunk in chat(stream=True, stream_options={"include_usage": True}):
        chunks += 1
        usage = numbers(chunk.usage) if chunk.usage else usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            roles += [choice.delta.role] if choice.delta.role else []
            finish = choice.finish_reason or finish
    return {"text": text, "roles": roles, "finish": finish, "usage": usage, "chunks": chunks}


def case_completion():
    a = completion()
    return {"text": a.choices[0].text, "usage": numbers(a.usage)}


def case_completion_stream():
    text, usage = "", None
    for chunk in completion(stream=True, stream_options={"include_usage": True}):
        usage = numbers(chunk.usage) if chunk.usage else usage
        text += "".join(c.text for c in chunk.choices)
    return {"text": text, "usage": usage}


def case_completion_list():
    return {"texts": [c.text for c in completion(prompt=["once upon a time", "another"]).choices]}


def case_stop():
    full = completion(max_tokens=40).choices[0].text
    string = full[len(full) // 2:len(full) // 2 + 3]
    a = completion(max_tokens=40, stop=[string]).choices[0]
    return {"full": full, "string": string, "text": a.text, "finish": a.finish_reason}


def case_seed():
    def text(seed):
        return completion(temperature=1.0, seed=seed, top_p=0.95, presence_penalty=0.1).choices[0].text

    return {"same": text(7) == text(7), "different": len({text(s) for s in range(4)}) > 1}


def case_choices():
    return {"indices": sorted(c.index for c in chat(n=2, temperature=0.8, seed=1).choices)}


def case_request_id():
    raw = CLIENT.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, max_tokens=1, extra_headers={"X-Request-ID": "from-the-client"})
    return {"sent": "from-the-client", "header": raw.headers["x-request-id"], "attribute": raw.parse()._request_id}


def case_models():
    return {"listed": [m.id for m in CLIENT.models.list()], "retrieved": CLIENT.models.retrieve("tiny").id}


def case_async_chat():
    async def ask_all():
        async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as client:
            answers = await asyncio.gather(*[client.chat.completions.create(
                model="tiny", messages=MESSAGES, temperature=0, max_tokens=8) for _ in range(8)])
            return [a.choices[0].message.content for a in answers]

    return {"texts": asyncio.run(ask_all())}


def error_of(call):
    """[class, status, code] of what a call raises."""
    try:
        call()
    except openai.APIStatusError as e:
        return [type(e).__name__, e.status_code, e.code]
    raise AssertionError("no error")


def case_errors():
    return {"unknown_model": error_of(lambda: chat(model="nothing-of-that-name")),
            "wrong_type": error_of(lambda: chat(temperature="hot")),
            "unsupported": error_of(lambda: chat(logprobs=True)),
            "too_long": error_of(lambda: completion(prompt="word " * 100000))}


def case_wrong_key():
    return error_of(chat)


def case_rate_limit():
    return error_of(lambda: [chat(max_tokens=1) for _ in range(5)])


def case_retries():
    client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=5)
    answers = [client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=1) for _ in range(2)]
    return {"answers": len(answers)}


def case_no_node():
    return error_of(chat)


def case_leave():
    seen = 0
    stream = chat(stream=True, max_tokens=200)
    for _ in stream:
        seen += 1
        if seen == 3:
            break
    stream.close()
    return {"seen": seen}


def main():
    out = {}
    for case in sys.argv[2:]:
        out[case] = globals()["case_" + case]()
    print(json.dumps(out))


if __name__ == "__main__":
    main()
