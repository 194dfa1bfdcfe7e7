#ifndef BOXD_SIGNALS_H
#define BOXD_SIGNALS_H

/* Sets what this process does with signals, so that none of them ends the box or is ignored by
 * the commands that it starts. Returns 0 or the errno. */
int boxd_take_signals(void);

#endif
