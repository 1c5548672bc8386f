// A library that has every function that ringnet looks for, and nothing else of
// rdma-core.

#define FUNCTION(result, name, args) \
	void name(void) {}

#include "functions.h"

RN_LIBIBVERBS(FUNCTION)
RN_LIBIBVERBS_OPTIONAL(FUNCTION)
RN_LIBRDMACM(FUNCTION)
