/* doctor.h - `tandemctl doctor`: will a cluster run here, and if not, what to do.
 *
 * What: the checks of doctor_host, doctor_model and doctor_net in turn, one line each, or one JSON document. CTL_FAILED
 * when any check fails; warnings do not.
 * Thread: main, before any other thread exists.
 */
#ifndef CTL_DOCTOR_H
#define CTL_DOCTOR_H

#include "ctl/command.h"

extern const struct td_program ctl_doctor_program;
enum ctl_exit ctl_doctor(const void *options, char *const *args);

#endif
