#include "ctl/term.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "common/base/mem.h"

/* Alternate screen, no cursor; and back with the attributes reset. */
#define ENTER "\033[?1049h\033[?25l\033[2J"
#define LEAVE "\033[0m\033[?25h\033[?1049l"

/* One terminal a process: signal handlers have no argument. Written by main only, except `taken`. */
static struct {
    volatile sig_atomic_t taken;
    int in, out;
    struct termios before, during;
} term;

static const int ends[] = {SIGINT,  SIGTERM, SIGHUP, SIGQUIT, SIGPIPE,
                           SIGABRT, SIGSEGV, SIGBUS, SIGFPE};

/* Nothing can be done about a terminal that does not take it. */
static void say(const char *text)
{
    ssize_t n = write(term.out, text, strlen(text));
    (void)n;
}

/* Safe in a signal handler: write() and tcsetattr() are. */
static void give_back(void)
{
    if (term.taken) {
        term.taken = 0;
        say(LEAVE);
        (void)tcsetattr(term.in, TCSANOW, &term.before);
    }
}

static void take(void)
{
    (void)tcsetattr(term.in, TCSANOW, &term.during);
    say(ENTER);
    term.taken = 1;
}

/* Ctrl-C is how a user leaves: no failure. Everything else ends as it would have without us. */
static void on_end(int signo)
{
    int error = errno;
    give_back();
    if (signo == SIGINT) {
        _exit(0);
    }
    (void)signal(signo, SIG_DFL);
    (void)raise(signo);
    errno = error;
}

static void on_stop(int signo)
{
    int error = errno;
    sigset_t only;
    give_back();
    (void)signal(SIGTSTP, SIG_DFL);
    (void)raise(signo);
    (void)sigemptyset(&only);
    (void)sigaddset(&only, SIGTSTP);
    (void)pthread_sigmask(SIG_UNBLOCK, &only, NULL); /* stops here, until SIGCONT */
    struct sigaction a = {.sa_handler = on_stop};
    (void)sigaction(SIGTSTP, &a, NULL);
    take();
    errno = error;
}

static void on_size(int signo)
{
    (void)signo; /* only to end the wait for a key */
}

static void catch (int signo, void (*fn)(int))
{
    struct sigaction a = {.sa_handler = fn};
    (void)sigemptyset(&a.sa_mask);
    (void)sigaction(signo, &a, NULL);
}

td_err ctl_term_open(int in, int out)
{
    if (isatty(in) == 0 || isatty(out) == 0 || tcgetattr(in, &term.before) != 0) {
        return TD_ERR_UNSUPPORTED;
    }
    term.in = in;
    term.out = out;
    term.during = term.before;
    term.during.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    term.during.c_cc[VMIN] = 0;
    term.during.c_cc[VTIME] = 0;
    (void)atexit(give_back); /* without it the other ways remain */
    for (size_t i = 0; i < TD_COUNT(ends); i++) {
        catch (ends[i], on_end);
    }
    catch (SIGTSTP, on_stop);
    catch (SIGWINCH, on_size);
    take();
    return TD_OK;
}

void ctl_term_close(void)
{
    give_back();
}

void ctl_term_size(int out, unsigned *columns, unsigned *rows)
{
    struct winsize w;
    bool known = ioctl(out, TIOCGWINSZ, &w) == 0;
    *columns = known ? w.ws_col : 0;
    *rows = known ? w.ws_row : 0;
}

int ctl_term_key(int64_t wait_us)
{
    struct pollfd p = {.fd = term.in, .events = POLLIN};
    char c = 0;
    int n = poll(&p, 1, (int)(wait_us / 1000 + 1));
    if (n <= 0) {
        return n == 0 || errno == EINTR ? 0 : -1;
    }
    ssize_t got = read(term.in, &c, 1);
    return got == 1 ? (unsigned char)c : -1;
}
