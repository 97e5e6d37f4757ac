/* A library that only leads to the driver's functions in another one: the linker has to keep that. */
int cuInit(unsigned flags);
int (*const leads_to)(unsigned) = cuInit;
