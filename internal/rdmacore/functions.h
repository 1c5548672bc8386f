// The functions of rdma-core that are looked up at run time: result, name,
// arguments. A list apart from abi.h so that abi_test.go can compare each
// signature with the official prototype.

struct _compat_ibv_port_attr;
union rn_ibv_gid;

#define RN_LIBIBVERBS(F)                                                       \
	F(int, ibv_fork_init, (void))                                          \
	F(struct rn_ibv_pd *, ibv_alloc_pd, (struct rn_ibv_context *))         \
	F(int, ibv_dealloc_pd, (struct rn_ibv_pd *))                           \
	F(struct rn_ibv_mr *, ibv_reg_mr,                                      \
	  (struct rn_ibv_pd *, void *, size_t, int))                           \
	F(int, ibv_dereg_mr, (struct rn_ibv_mr *))                             \
	F(struct rn_ibv_comp_channel *, ibv_create_comp_channel,               \
	  (struct rn_ibv_context *))                                           \
	F(int, ibv_destroy_comp_channel, (struct rn_ibv_comp_channel *))       \
	F(struct rn_ibv_cq *, ibv_create_cq,                                   \
	  (struct rn_ibv_context *, int, void *, struct rn_ibv_comp_channel *, \
	   int))                                                               \
	F(int, ibv_destroy_cq, (struct rn_ibv_cq *))                           \
	F(int, ibv_get_cq_event,                                               \
	  (struct rn_ibv_comp_channel *, struct rn_ibv_cq **, void **))        \
	F(void, ibv_ack_cq_events, (struct rn_ibv_cq *, unsigned int))         \
	F(struct rn_ibv_qp *, ibv_create_qp,                                   \
	  (struct rn_ibv_pd *, struct rn_ibv_qp_init_attr *))                  \
	F(int, ibv_modify_qp,                                                  \
	  (struct rn_ibv_qp *, struct rn_ibv_qp_attr *, int))                  \
	F(int, ibv_destroy_qp, (struct rn_ibv_qp *))                           \
	F(int, ibv_query_device,                                               \
	  (struct rn_ibv_context *, struct rn_ibv_device_attr *))              \
	F(int, ibv_query_port,                                                 \
	  (struct rn_ibv_context *, uint8_t, struct _compat_ibv_port_attr *))  \
	F(struct rn_ibv_ah *, ibv_create_ah,                                   \
	  (struct rn_ibv_pd *, struct rn_ibv_ah_attr *))                       \
	F(int, ibv_destroy_ah, (struct rn_ibv_ah *))                           \
	F(int, ibv_attach_mcast,                                               \
	  (struct rn_ibv_qp *, const union rn_ibv_gid *, uint16_t))            \
	F(int, ibv_detach_mcast,                                               \
	  (struct rn_ibv_qp *, const union rn_ibv_gid *, uint16_t))            \
	F(int, ibv_get_async_event,                                            \
	  (struct rn_ibv_context *, struct rn_ibv_async_event *))              \
	F(void, ibv_ack_async_event, (struct rn_ibv_async_event *))

// What the library may be too old to have; then it is NULL.
#define RN_LIBIBVERBS_OPTIONAL(F)                                              \
	F(struct rn_ibv_mr *, ibv_reg_mr_iova2,                                \
	  (struct rn_ibv_pd *, void *, size_t, uint64_t, unsigned int))        \
	F(int, ibv_query_ece, (struct rn_ibv_qp *, struct rn_ibv_ece *))       \
	F(int, ibv_set_ece, (struct rn_ibv_qp *, struct rn_ibv_ece *))

#define RN_LIBRDMACM(F)                                                        \
	F(struct rn_rdma_event_channel *, rdma_create_event_channel, (void))   \
	F(int, rdma_get_cm_event,                                              \
	  (struct rn_rdma_event_channel *, struct rn_rdma_cm_event **))        \
	F(int, rdma_ack_cm_event, (struct rn_rdma_cm_event *))                 \
	F(int, rdma_create_id,                                                 \
	  (struct rn_rdma_event_channel *, struct rn_rdma_cm_id **, void *,    \
	   enum rn_rdma_port_space))                                           \
	F(int, rdma_destroy_id, (struct rn_rdma_cm_id *))                      \
	F(int, rdma_set_option,                                                \
	  (struct rn_rdma_cm_id *, int, int, void *, size_t))                  \
	F(int, rdma_bind_addr, (struct rn_rdma_cm_id *, struct sockaddr *))    \
	F(int, rdma_listen, (struct rn_rdma_cm_id *, int))                     \
	F(int, rdma_resolve_addr,                                              \
	  (struct rn_rdma_cm_id *, struct sockaddr *, struct sockaddr *, int)) \
	F(int, rdma_resolve_route, (struct rn_rdma_cm_id *, int))              \
	F(int, rdma_init_qp_attr,                                              \
	  (struct rn_rdma_cm_id *, struct rn_ibv_qp_attr *, int *))            \
	F(int, rdma_connect,                                                   \
	  (struct rn_rdma_cm_id *, struct rn_rdma_conn_param *))               \
	F(int, rdma_establish, (struct rn_rdma_cm_id *))                       \
	F(int, rdma_accept,                                                    \
	  (struct rn_rdma_cm_id *, struct rn_rdma_conn_param *))               \
	F(int, rdma_reject, (struct rn_rdma_cm_id *, const void *, uint8_t))   \
	F(int, rdma_notify, (struct rn_rdma_cm_id *, enum rn_ibv_event_type))  \
	F(int, rdma_disconnect, (struct rn_rdma_cm_id *))                      \
	F(int, rdma_join_multicast_ex,                                         \
	  (struct rn_rdma_cm_id *, struct rn_rdma_cm_join_mc_attr_ex *,        \
	   void *))                                                            \
	F(int, rdma_leave_multicast,                                           \
	  (struct rn_rdma_cm_id *, struct sockaddr *))

#define RN_LIBRDMACM_OPTIONAL(F)                                               \
	F(int, rdma_set_local_ece,                                             \
	  (struct rn_rdma_cm_id *, struct rn_ibv_ece *))                       \
	F(int, rdma_get_remote_ece,                                            \
	  (struct rn_rdma_cm_id *, struct rn_ibv_ece *))
