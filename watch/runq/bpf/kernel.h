// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// What runq.c needs to know of the kernel: some fields of some structures,
// found at load time by their names (CO-RE), and the helpers by their numbers.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef _Bool bool;

#define COMM 16 // TASK_COMM_LEN

#define CORE __attribute__((preserve_access_index))

struct kernfs_node {
	u64 id;
} CORE;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
} CORE;

struct cgroup_root {
	int hierarchy_id;
} CORE;

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	struct cgroup_root *root;
} CORE;

struct css_set {
	struct cgroup *dfl_cgrp;
} CORE;

struct task_group {
	struct cgroup_subsys_state css;
} CORE;

struct thread_info {
	u32 cpu;
} CORE;

struct cfs_rq {
	int throttle_count;
} CORE;

struct sched_entity {
	struct cfs_rq *cfs_rq;
} CORE;

struct task_struct {
	struct thread_info thread_info;
	struct task_struct *group_leader;
	u8 comm[COMM];
	unsigned int __state;
	unsigned int flags;
	u8 on_cpu; // an int before 7.3: its low byte
	int pid;
	struct sched_entity se;
	struct task_group *sched_task_group;
	struct css_set *cgroups;
	bool throttled;
} CORE;

#define PF_KTHREAD 0x00200000
#define TASK_RUNNING 0

// The third kind of field information in the relocation record of LLVM.
#define FIELD_EXISTS 2
#define field_exists(field) __builtin_preserve_field_info(field, FIELD_EXISTS)

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_F_MMAPABLE 1024

#define BPF_ANY 0

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;

#define SEC(name) __attribute__((section(name), used))
#define inline inline __attribute__((always_inline))

// A map is described by the types of the members of an anonymous structure.
#define NUMBER(name, n) int(*name)[n]
#define TYPE(name, t) t *name
