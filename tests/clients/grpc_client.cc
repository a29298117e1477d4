/* A C++ client of the gRPC port by Debian's libgrpc++, as its users write one: blocking and asynchronous calls, streams,
 * cancellation, deadlines, TLS. Prints what it was told as one JSON object; clients_check.py judges it. Its Go twin is
 * grpc_client.go.
 *
 *     grpc_client HOST:PORT CA-FILE|- PROMPT TOKENS
 */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "grpc_health.grpc.pb.h"
#include "grpc_reflection_v1alpha.grpc.pb.h"
#include "tandem.grpc.pb.h"

namespace health = grpc::health::v1;
namespace reflection = grpc::reflection::v1alpha;
namespace api = tandem::v1;
using std::chrono::milliseconds;

static const char *const kCodes[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

static void must(bool ok, const char *what)
{
    if (!ok) {
        std::cerr << "failed: " << what << "\n";
        std::exit(1);
    }
}

static std::string name_of(const grpc::Status &status)
{
    return std::string("\"") + kCodes[status.error_code()] + "\"";
}

static void limit(grpc::ClientContext &context, milliseconds wait)
{
    context.set_deadline(std::chrono::system_clock::now() + wait);
}

static std::shared_ptr<grpc::Channel> channel_to(const char *address, const char *ca_file)
{
    if (std::string(ca_file) == "-") {
        return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    }
    std::ifstream file(ca_file);
    std::stringstream pem;
    pem << file.rdbuf();
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = pem.str();
    return grpc::CreateChannel(address, grpc::SslCredentials(options));
}

static api::GenerateRequest ask(const std::string &prompt, uint32_t tokens)
{
    api::GenerateRequest request;
    request.set_text(prompt);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_sampling()->set_max_tokens(tokens);
    request.mutable_sampling()->set_ignore_eos(true);
    return request;
}

static std::string list_of(const std::vector<int32_t> &ids)
{
    std::string out = "[";
    for (int32_t id : ids) {
        out += (out.size() > 1 ? "," : "") + std::to_string(id);
    }
    return out + "]";
}

static void take(const api::GenerateResponse &response, std::vector<int32_t> &ids)
{
    ids.insert(ids.end(), response.delta().token_ids().begin(), response.delta().token_ids().end());
}

static std::string check_health(const std::shared_ptr<grpc::Channel> &channel)
{
    auto stub = health::Health::NewStub(channel);
    health::HealthCheckRequest request;
    health::HealthCheckResponse response;
    grpc::ClientContext once;
    limit(once, milliseconds(30000));
    must(stub->Check(&once, request, &response).ok(), "Health.Check");
    grpc::ClientContext watching;
    auto watch = stub->Watch(&watching, request);
    health::HealthCheckResponse seen;
    must(watch->Read(&seen) && seen.status() == response.status(), "Health.Watch");
    watching.TryCancel();
    while (watch->Read(&seen)) {
    }
    must(watch->Finish().error_code() == grpc::StatusCode::CANCELLED, "the end of Health.Watch");
    return "\"" + health::HealthCheckResponse::ServingStatus_Name(response.status()) + "\"";
}

static std::string list_services(const std::shared_ptr<grpc::Channel> &channel)
{
    grpc::ClientContext context;
    limit(context, milliseconds(30000));
    auto stream = reflection::ServerReflection::NewStub(channel)->ServerReflectionInfo(&context);
    reflection::ServerReflectionRequest request;
    reflection::ServerReflectionResponse response;
    request.set_list_services("*");
    must(stream->Write(request) && stream->Read(&response), "ServerReflectionInfo");
    must(stream->WritesDone() && stream->Finish().ok(), "the end of ServerReflectionInfo");
    std::string out = "[";
    for (const auto &service : response.list_services_response().service()) {
        out += (out.size() > 1 ? ",\"" : "\"") + service.name() + "\"";
    }
    return out + "]";
}

static std::string list_models(api::Engine::Stub &engine)
{
    grpc::ClientContext context;
    limit(context, milliseconds(30000));
    api::ListModelsResponse response;
    must(engine.ListModels(&context, api::ListModelsRequest(), &response).ok(), "ListModels");
    must(response.models_size() == 1, "one model");
    return "\"" + response.models(0).id() + "\"";
}

/* Reads a stream to its end. */
static grpc::Status generate(api::Engine::Stub &engine, const api::GenerateRequest &request,
                             milliseconds wait, std::vector<int32_t> &ids)
{
    grpc::ClientContext context;
    limit(context, wait);
    auto stream = engine.Generate(&context, request);
    api::GenerateResponse response;
    while (stream->Read(&response)) {
        take(response, ids);
    }
    return stream->Finish();
}

/* Two streams at once from one thread by a completion queue. */
static std::string generate_async(api::Engine::Stub &engine, const api::GenerateRequest &request)
{
    struct Call {
        grpc::ClientContext context;
        std::unique_ptr<grpc::ClientAsyncReader<api::GenerateResponse>> stream;
        api::GenerateResponse response;
        grpc::Status status;
        std::vector<int32_t> ids;
        enum { STARTING, READING, ENDING, OVER } state = STARTING;
    } calls[2];
    grpc::CompletionQueue queue;
    for (Call &call : calls) {
        limit(call.context, milliseconds(30000));
        call.stream = engine.AsyncGenerate(&call.context, request, &queue, &call);
    }
    int open = 2;
    void *tag = nullptr;
    bool ok = false;
    while (open > 0 && queue.Next(&tag, &ok)) {
        Call *call = static_cast<Call *>(tag);
        if (call->state == Call::ENDING) {
            call->state = Call::OVER;
            open--;
        } else if (!ok) {
            call->state = Call::ENDING;
            call->stream->Finish(&call->status, call);
        } else {
            if (call->state == Call::READING) {
                take(call->response, call->ids);
            }
            call->state = Call::READING;
            call->stream->Read(&call->response, call);
        }
    }
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    must(calls[0].status.ok() && calls[1].status.ok(), "two streams at once");
    return "[" + list_of(calls[0].ids) + "," + list_of(calls[1].ids) + "]";
}

/* Leaves after the first message. */
static std::string cancel(api::Engine::Stub &engine, const api::GenerateRequest &request)
{
    grpc::ClientContext context;
    limit(context, milliseconds(30000));
    auto stream = engine.Generate(&context, request);
    api::GenerateResponse response;
    must(stream->Read(&response), "the first message");
    context.TryCancel();
    while (stream->Read(&response)) {
    }
    return name_of(stream->Finish());
}

int main(int argc, char **argv)
{
    must(argc == 5, "usage: grpc_client HOST:PORT CA-FILE|- PROMPT TOKENS");
    auto channel = channel_to(argv[1], argv[2]);
    auto engine = api::Engine::NewStub(channel);
    api::GenerateRequest request =
        ask(argv[3], static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10)));
    api::GenerateRequest endless = ask(argv[3], 1500), bad = request;
    bad.mutable_sampling()->set_temperature(-1);
    std::vector<int32_t> ids, none;
    std::cout << "{\"health\":" << check_health(channel);
    std::cout << ",\"services\":" << list_services(channel);
    std::cout << ",\"model\":" << list_models(*engine);
    must(generate(*engine, request, milliseconds(30000), ids).ok(), "Generate");
    std::cout << ",\"ids\":" << list_of(ids);
    std::cout << ",\"async_ids\":" << generate_async(*engine, request);
    std::cout << ",\"cancel\":" << cancel(*engine, endless);
    std::cout << ",\"deadline\":" << name_of(generate(*engine, endless, milliseconds(100), none));
    std::cout << ",\"bad\":" << name_of(generate(*engine, bad, milliseconds(30000), none)) << "}\n";
    return 0;
}
