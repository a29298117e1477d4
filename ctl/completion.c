#include "ctl/completion.h"

#include <string.h>

#include "common/base/mem.h"

/* "a|b|c" as words. */
static void print_choices(const char *choices, FILE *out)
{
    for (const char *p = choices; *p != 0; p++) {
        (void)fputc(*p == '|' ? ' ' : *p, out);
    }
}

static bool takes_path(const struct td_opt *o)
{
    return strcmp(o->unit, "path") == 0;
}

/* One command's branch: values after a flag that has a list of them, else its flags, or a node's name where it takes
 * one. `list` is what the wrapper offers; @file leaves it to the shell, nothing offers nothing. */
static void print_command(const struct ctl_command *c, FILE *out)
{
    (void)fprintf(out, "    \"%s \"*)\n        case \"$prev\" in\n", c->words);
    for (size_t i = 0; i < c->program->n_opts; i++) {
        const struct td_opt *o = &c->program->opts[i];
        if (o->type == TD_OPT_ENUM) {
            (void)fprintf(out, "        --%s%s) list=\"", o->name,
                          strcmp(o->name, "output") == 0 ? "|-o" : "");
            print_choices(o->choices, out);
            (void)fputs("\" ;;\n", out);
        } else if (o->type != TD_OPT_BOOL) {
            (void)fprintf(out, "        --%s) list=%s ;;\n", o->name, takes_path(o) ? "@file" : "");
        }
    }
    (void)fputs("        --config) list=@file ;;\n        *) list=\"", out);
    for (size_t i = 0; i < c->program->n_opts; i++) {
        (void)fprintf(out, "--%s ", c->program->opts[i].name);
    }
    (void)fputs("--config --help\"", out);
    if (strcmp(c->args, "NODE") == 0) {
        (void)fputs("\n            case \"$cur\" in -*) ;; *) list=$(_tandemctl_nodes) ;; esac",
                    out);
    }
    (void)fputs(" ;;\n        esac ;;\n", out);
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
        (void)fprintf(out, "    \"%.*s \") list=\"", (int)len, commands[i].words);
        for (size_t j = i; j < n; j++) {
            if (strncmp(commands[j].words, commands[i].words, len + 1) == 0) {
                (void)fprintf(out, "%s ", commands[j].words + len + 1);
            }
        }
        (void)fputs("\" ;;\n", out);
    }
}

/* The `case` that bash and zsh share: from $line, $prev and $cur to $list. */
static void print_case(const struct ctl_command *commands, size_t n, FILE *out)
{
    (void)fputs("    case \"$line\" in\n", out);
    for (size_t i = 0; i < n; i++) {
        print_command(&commands[i], out);
    }
    print_second_words(commands, n, out);
    (void)fputs("    \" \") list=\"", out);
    for (size_t i = 0; i < n; i++) {
        size_t len = strcspn(commands[i].words, " ");
        if (is_first(commands, i, len)) {
            (void)fprintf(out, "%.*s ", (int)len, commands[i].words);
        }
    }
    (void)fputs("completion help\" ;;\n    \"completion \") list=\"", out);
    print_choices(CTL_SHELLS, out);
    (void)fputs("\" ;;\n    esac\n", out);
}

#define NODES_COMMAND "tandemctl get nodes --timeout 1 2>/dev/null | awk 'NR > 1 { print $1 }'"

static void print_bash(const struct ctl_command *commands, size_t n, FILE *out)
{
    (void)fputs("# bash completion of tandemctl: source <(tandemctl completion bash)\n"
                "_tandemctl_nodes() { " NODES_COMMAND "; }\n"
                "_tandemctl() {\n"
                "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} list=\n"
                "    COMPREPLY=()\n"
                "    local line=\"${COMP_WORDS[*]:1:COMP_CWORD-1} \"\n",
                out);
    print_case(commands, n, out);
    (void)fputs("    [ \"$list\" != @file ] || return 0\n"
                "    mapfile -t COMPREPLY < <(compgen -W \"$list\" -- \"$cur\")\n"
                "}\n"
                "complete -o bashdefault -o default -F _tandemctl tandemctl\n",
                out);
}

static void print_zsh(const struct ctl_command *commands, size_t n, FILE *out)
{
    (void)fputs(
        "#compdef tandemctl\n"
        "# zsh completion of tandemctl: source <(tandemctl completion zsh), after compinit\n"
        "_tandemctl_nodes() { " NODES_COMMAND "; }\n"
        "_tandemctl() {\n"
        "    local cur=${words[CURRENT]} prev=${words[CURRENT-1]} list=\n"
        "    local line=\"${(j: :)words[2,CURRENT-1]} \"\n",
        out);
    print_case(commands, n, out);
    (void)fputs("    if [[ $list == @file ]]; then\n"
                "        _files\n"
                "    else\n"
                "        compadd -- ${=list}\n"
                "    fi\n"
                "}\n"
                "(( ! $+functions[compdef] )) || compdef _tandemctl tandemctl\n",
                out);
}

/* ---- fish ---- */

/* 'text', for fish: a quote and a backslash are escaped. */
static void print_quoted(const char *text, FILE *out)
{
    (void)fputc('\'', out);
    for (; *text != 0; text++) {
        if (*text == '\'' || *text == '\\') {
            (void)fputc('\\', out);
        }
        (void)fputc(*text, out);
    }
    (void)fputc('\'', out);
}

static void print_fish_opt(const struct ctl_command *c, const struct td_opt *o, FILE *out)
{
    (void)fprintf(out, "complete -c tandemctl -n '__tandemctl_in \"%s\"' -l %s", c->words, o->name);
    if (strcmp(o->name, "output") == 0) {
        (void)fputs(" -s o", out);
    }
    if (o->type == TD_OPT_ENUM) {
        (void)fputs(" -x -a '", out);
        print_choices(o->choices, out);
        (void)fputc('\'', out);
    } else if (o->type != TD_OPT_BOOL) {
        (void)fputs(takes_path(o) ? " -r -F" : " -x", out);
    }
    (void)fputs(" -d ", out);
    print_quoted(o->help, out);
    (void)fputc('\n', out);
}

/* The next word of a command's name: offered when what stands before it is exactly the words before. */
static void print_fish_words(const struct ctl_command *commands, size_t n, FILE *out)
{
    for (size_t i = 0; i < n; i++) {
        const char *words = commands[i].words;
        size_t len = strcspn(words, " ");
        bool two = words[len] == ' ';
        if (is_first(commands, i, len)) {
            (void)fprintf(out, "complete -c tandemctl -n '__tandemctl_at \"\"' -a %.*s", (int)len,
                          words);
            if (!two) {
                (void)fputs(" -d ", out);
                print_quoted(commands[i].program->summary, out);
            }
            (void)fputc('\n', out);
        }
        if (two) {
            (void)fprintf(out, "complete -c tandemctl -n '__tandemctl_at \"%.*s\"' -a %s -d ",
                          (int)len, words, words + len + 1);
            print_quoted(commands[i].program->summary, out);
            (void)fputc('\n', out);
        }
    }
}

static void print_fish(const struct ctl_command *commands, size_t n, FILE *out)
{
    (void)fputs("# fish completion of tandemctl: tandemctl completion fish | source\n"
                "function __tandemctl_line\n"
                "    set -l words (commandline -opc)\n"
                "    string join ' ' -- $words[2..-1]\n"
                "end\n"
                "function __tandemctl_at\n"
                "    set -l line (__tandemctl_line)\n"
                "    test \"$line\" = \"$argv[1]\"\n"
                "end\n"
                "function __tandemctl_in\n"
                "    set -l line (__tandemctl_line)\n"
                "    string match -q -- \"$argv[1] *\" \"$line \"\n"
                "end\n"
                "complete -c tandemctl -f\n",
                out);
    print_fish_words(commands, n, out);
    (void)fputs("complete -c tandemctl -n '__tandemctl_at \"\"' -a 'completion help'\n"
                "complete -c tandemctl -n '__tandemctl_at \"completion\"' -a '",
                out);
    print_choices(CTL_SHELLS, out);
    (void)fputs("'\n", out);
    for (size_t i = 0; i < n; i++) {
        const struct ctl_command *c = &commands[i];
        if (strcmp(c->args, "NODE") == 0) {
            (void)fprintf(out, "complete -c tandemctl -n '__tandemctl_in \"%s\"' -a '(", c->words);
            (void)fputs(
                "tandemctl get nodes --timeout 1 2>/dev/null | tail -n +2 | string split -f1 "
                "\" \")'\n",
                out);
        }
        for (size_t k = 0; k < c->program->n_opts; k++) {
            print_fish_opt(c, &c->program->opts[k], out);
        }
    }
}

td_err ctl_completion_print(const struct ctl_command *commands, size_t n, const char *shell,
                            FILE *out)
{
    static const struct {
        const char *name;
        void (*print)(const struct ctl_command *commands, size_t n, FILE *out);
    } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    for (size_t i = 0; i < TD_COUNT(shells); i++) {
        if (strcmp(shells[i].name, shell) == 0) {
            shells[i].print(commands, n, out);
            return TD_OK;
        }
    }
    return TD_ERR_UNSUPPORTED;
}
