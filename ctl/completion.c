#include "ctl/completion.h"

#include <string.h>

/* "a|b|c" as words. */
static void print_choices(const char *choices, FILE *out)
{
    for (const char *p = choices; *p != 0; p++) {
        (void)fputc(*p == '|' ? ' ' : *p, out);
    }
}

/* One command's branch: values after a flag that has a list of them, else its flags. */
static void print_command(const struct ctl_command *c, FILE *out)
{
    (void)fprintf(out, "    \"%s\"*)\n        case \"$prev\" in\n", c->words);
    for (size_t i = 0; i < c->program->n_opts; i++) {
        const struct td_opt *o = &c->program->opts[i];
        if (o->type == TD_OPT_ENUM) {
            (void)fprintf(out, "        --%s%s) words=\"", o->name,
                          strcmp(o->name, "output") == 0 ? "|-o" : "");
            print_choices(o->choices, out);
            (void)fputs("\" ;;\n", out);
        } else if (o->type != TD_OPT_BOOL) {
            (void)fprintf(out, "        --%s) return ;;\n", o->name); /* a file, or free text */
        }
    }
    (void)fputs("        *) words=\"", out);
    for (size_t i = 0; i < c->program->n_opts; i++) {
        (void)fprintf(out, "--%s ", c->program->opts[i].name);
    }
    (void)fputs("--config --help\" ;;\n        esac ;;\n", out);
}

/* Commands of two words: the second ones after the first. `i` is the first with this word. */
static bool is_first(const struct ctl_command *commands, size_t i, size_t len)
{
    for (size_t j = 0; j < i; j++) {
        if (strncmp(commands[j].words, commands[i].words, len) == 0 &&
            strcspn(commands[j].words, " ") == len) {
            return false;
        }
    }
    return true;
}

static void print_second_words(const struct ctl_command *commands, size_t n, FILE *out)
{
    for (size_t i = 0; i < n; i++) {
        size_t len = strcspn(commands[i].words, " ");
        if (commands[i].words[len] == 0 || !is_first(commands, i, len)) {
            continue;
        }
        (void)fprintf(out, "    \"%.*s \") words=\"", (int)len, commands[i].words);
        for (size_t j = i; j < n; j++) {
            if (strncmp(commands[j].words, commands[i].words, len + 1) == 0) {
                (void)fprintf(out, "%s ", commands[j].words + len + 1);
            }
        }
        (void)fputs("\" ;;\n", out);
    }
}

td_err ctl_completion_print(const struct ctl_command *commands, size_t n, const char *shell,
                            FILE *out)
{
    if (strcmp(shell, "bash") != 0) {
        return TD_ERR_UNSUPPORTED;
    }
    (void)fputs("# bash completion of tandemctl: source <(tandemctl completion bash)\n"
                "_tandemctl() {\n"
                "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=\n"
                "    COMPREPLY=()\n"
                "    local line=\"${COMP_WORDS[*]:1:COMP_CWORD-1} \"\n"
                "    case \"$line\" in\n",
                out);
    for (size_t i = 0; i < n; i++) {
        print_command(&commands[i], out);
    }
    print_second_words(commands, n, out);
    (void)fputs("    \" \") words=\"", out);
    for (size_t i = 0; i < n; i++) {
        size_t len = strcspn(commands[i].words, " ");
        if (is_first(commands, i, len)) {
            (void)fprintf(out, "%.*s ", (int)len, commands[i].words);
        }
    }
    (void)fputs("completion help\" ;;\n    \"completion \") words=bash ;;\n    esac\n"
                "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
                "}\n"
                "complete -o default -F _tandemctl tandemctl\n",
                out);
    return TD_OK;
}
