/* doctor_host.h - is this machine fit to run nodes: CPU, memory, shared memory, limits.
 *
 * What: reads /proc, /sys and limits; the judging functions are pure and take what was read.
 * Thread: main. Failure: what cannot be read is a WARN that says so.
 */
#ifndef CTL_DOCTOR_HOST_H
#define CTL_DOCTOR_HOST_H

#include <stdint.h>

#include "ctl/report.h"

void ctl_doctor_cpu(struct ctl_report *r);
/* need_bytes: of one node with the given model; 0: unknown. */
void ctl_doctor_memory(struct ctl_report *r, uint64_t need_bytes);
void ctl_doctor_shm(struct ctl_report *r);
void ctl_doctor_limits(struct ctl_report *r);

/* /proc/cpuinfo as text -> which kernels run, and what is missing. */
void ctl_doctor_judge_cpu(struct ctl_report *r, const char *cpuinfo);
/* Cores online and the container's share of them ("max 100000" or "200000 100000", of cpu.max; NULL: none). */
void ctl_doctor_judge_cores(struct ctl_report *r, long cores, const char *cpu_max);
void ctl_doctor_judge_memory(struct ctl_report *r, uint64_t available, uint64_t need);
void ctl_doctor_judge_shm(struct ctl_report *r, uint64_t total, uint64_t available);

#endif
