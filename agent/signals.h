#ifndef BOXD_SIGNALS_H
#define BOXD_SIGNALS_H

/* Sets what this process does with signals, so that none that is sent to it ends the box, but
 * SIGKILL and those that report faults, and none is ignored by the commands that it starts.
 * Returns 0 or the errno. */
int boxd_take_signals(void);

#endif
