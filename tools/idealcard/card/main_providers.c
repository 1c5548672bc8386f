// What perftest's programs want of the providers of mlx5 and EFA, with which they are linked, before
// they start. They call it only for what their flags ask of such a card, and this one is none: it has
// nothing to make.

#include <errno.h>
#include <stddef.h>

#define MAKES_NOTHING(name)       \
	void *name(void);         \
	void *name(void)          \
	{                         \
		errno = ENOTSUP;  \
		return NULL;      \
	}
#define DOES_NOTHING(name)        \
	int name(void);           \
	int name(void) { return ENOTSUP; }

MAKES_NOTHING(mlx5dv_create_mkey)
MAKES_NOTHING(mlx5dv_create_qp)
MAKES_NOTHING(mlx5dv_dek_create)
MAKES_NOTHING(mlx5dv_open_device)
MAKES_NOTHING(mlx5dv_qp_ex_from_ibv_qp_ex)
DOES_NOTHING(mlx5dv_crypto_login)
DOES_NOTHING(mlx5dv_dek_destroy)
DOES_NOTHING(mlx5dv_destroy_mkey)
DOES_NOTHING(mlx5dv_devx_general_cmd)
MAKES_NOTHING(efadv_create_qp_ex)
DOES_NOTHING(efadv_query_device)
