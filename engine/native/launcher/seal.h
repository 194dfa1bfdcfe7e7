// Returns 0 or an errno.
int forbid_userns(int ns);
