// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
// How long the tasks of watched control groups wait for a CPU, and which groups
// have the CPU meanwhile. Programs of the root group can count as groups.
//
// A task waits from its wake-up, or from losing the CPU while it could go on,
// until it is switched in. The waits of a group on one CPU are kept as a number
// of tasks and the sum of the instants from which they are uncharged: whenever
// the CPU changes hands, tasks * now - sum is what the group has waited for the
// one that leaves. So a switch costs the same however many tasks wait.
//
// Most switches of a host concern nobody who is watched. While no watched task
// waits for the CPU, a switch is one look at the new task's group: no clock, and
// no map but the CPU's.
//
// Everything kept per CPU is changed under the lock of that CPU's run queue,
// which the kernel holds when it calls these programs for a task in the queue.

#include "kernel.h"

#define MAX_GROUPS 32
#define BUCKETS 192
#define CULPRITS 64 // per group and CPU; a power of two
#define PROBES 8
#define STAMPS 32768 // a power of two
#define STAMP_PROBES 4
#define STAMP_STEP 8193 // far from the neighbours' places: thread ids follow each other
#define BELOW 512 // groups at and below a watched one
#define MADE 16384 // groups made while the probe is armed
#define YOUNG_NS 1000000000ULL

// Culprits that are no control groups. The ids of groups stay below these, and below
// 1 << 62, from which on are those of programs.
#define SPECIAL (1ULL << 63)
#define UNKNOWN (SPECIAL | 1)   // before the first switch seen on a CPU
#define IDLE (SPECIAL | 2)      // nobody: the CPU was waking up
#define KERNEL (SPECIAL | 3)    // kernel threads of the root group
#define THROTTLED (SPECIAL | 4) // the group's own quota
#define ROOT_GROUP 1
#define PROGRAMS 32 // at most MAX_GROUPS

const volatile bool by_v2 = 0;     // groups of the v2 hierarchy, not of the v1 cpu controller
const volatile u32 max_groups = 1; // at most MAX_GROUPS
const volatile int hierarchy = 0;  // its number in /proc/PID/cgroup

struct culprit {
	u64 id;
	u64 wait_ns;
	u64 preemptions;
};

// What one group has suffered on one CPU.
struct group {
	u64 id; // whose figures these are: places are used again
	u64 buckets[BUCKETS];
	u64 waits;
	u64 wait_ns;
	u64 dropped_ns;          // wait that found no room among the culprits
	u64 dropped_preemptions; // likewise
	struct culprit culprits[CULPRITS];
};

struct waiting {
	u64 id; // of the group
	u64 tasks;
	u64 since;     // sum over tasks
	u64 throttled; // nobody else is to blame until one of them runs
	u64 left;      // tasks that have left unseen and the sum of when, see forget
};

#define LEFT_TASKS 56 // from this bit on: their number
#define LEFT_TIME 10  // the sum is in 2^10 ns: 255 tasks fit for years

struct cpu {
	u64 running; // its own group, or a culprit that is none
	u64 mask;    // of groups with waiting tasks
	u64 lost;    // waits that found no room in stamps
	struct waiting waiting[MAX_GROUPS];
};

struct watched {
	u64 id; // of the group that was asked for: a descendant counts as it
	u64 group;
};

// When a task's wait began. Only who holds the lock of the task's run queue, or of a
// task that is in none, touches its stamp; others take places that are free.
struct stamp {
	u64 owner; // which arming and thread, see owner_of; free if 0, or of an earlier arming
	u64 id;
	u64 start;
	u64 since; // from when on it is uncharged, once it has changed its CPU; else 0
	u32 cpu;
	u32 group;
};

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(max_entries, BELOW); // for each of max_groups
	TYPE(key, u64);
	TYPE(value, struct watched);
} watch SEC(".maps");

// A group that was made while the probe is armed. While it is young, what it costs
// others is charged to the group above it: one that ends soon takes no place among
// the culprits, and its name could not be found out any more.
struct origin {
	u64 above; // the closest group above it that was not young itself
	u64 at;
};

struct {
	NUMBER(type, BPF_MAP_TYPE_LRU_HASH);
	NUMBER(max_entries, MADE);
	TYPE(key, u64);
	TYPE(value, struct origin);
} made SEC(".maps");

// While tasks wait, at their thread id modulo STAMPS, or in one of three places apart.
struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, STAMPS);
	TYPE(key, u32);
	TYPE(value, struct stamp);
} stamps SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, 1); // CPUs
	NUMBER(map_flags, BPF_F_MMAPABLE);
	TYPE(key, u32);
	TYPE(value, struct cpu);
} cpus SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	NUMBER(max_entries, 1); // CPUs * max_groups
	NUMBER(map_flags, BPF_F_MMAPABLE);
	TYPE(key, u32);
	TYPE(value, struct group);
} groups SEC(".maps");

// Programs of the root group that count as groups of their own, by the name of the
// process (comm).
struct name {
	u8 byte[COMM];
};

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(max_entries, PROGRAMS);
	TYPE(key, struct name);
	TYPE(value, u64);
} programs SEC(".maps");

u32 num_programs; // in the map

// Waiting tasks that have changed their CPU: those are in no mask.
u64 migrated;

// How often the probe has been armed: stamps of earlier times do not count.
u32 armed;

static inline u64 owner_of(u32 pid)
{
	return (u64)armed << 32 | pid;
}

static inline struct stamp *stamp_at(u32 at)
{
	u32 key = at & (STAMPS - 1);
	return bpf_map_lookup_elem(&stamps, &key);
}

static inline struct stamp *find(u32 pid)
{
	u64 owner = owner_of(pid);
	for (u32 i = 0; i < STAMP_PROBES; i++) {
		struct stamp *s = stamp_at(pid + i * STAMP_STEP);
		if (s && s->owner == owner)
			return s;
	}
	return 0;
}

// claim takes a place for the stamp of a task that has none; 0 if there is none.
static inline struct stamp *claim(u32 pid)
{
	u64 owner = owner_of(pid);
	for (u32 i = 0; i < STAMP_PROBES; i++) {
		struct stamp *s = stamp_at(pid + i * STAMP_STEP);
		if (!s)
			continue;
		u64 was = s->owner;
		bool taken = (u32)was && was >> 32 == owner >> 32;
		if (!taken && __sync_val_compare_and_swap(&s->owner, was, owner) == was)
			return s;
	}
	return 0;
}

static inline struct group *group_on(u32 cpu, u32 group, u64 id)
{
	u32 key = cpu * max_groups + group;
	struct group *g = bpf_map_lookup_elem(&groups, &key);
	return g && g->id == id ? g : 0;
}

static inline u64 place(u32 cpu, u64 group)
{
	return group << 32 | cpu;
}

// above_young is the group itself or, while it is young, the one above it.
static inline u64 above_young(u64 id)
{
	struct origin *m = bpf_map_lookup_elem(&made, &id);
	return m && bpf_ktime_get_ns() - m->at < YOUNG_NS ? m->above : id;
}

// charge adds wait and pre-emptions of a group, in its place, to a culprit: a young
// group counts as the one above it, and what is below a watched group as that.
__attribute__((noinline)) int charge(u64 where, u64 group, u64 id, u64 ns, u64 preemptions)
{
	struct group *g = group_on((u32)where, where >> 32, group);
	if (!g)
		return 0;
	if (id != group) {
		if (!(id & SPECIAL))
			id = above_young(id);
		u64 key = id == KERNEL ? ROOT_GROUP : id;
		struct watched *w = bpf_map_lookup_elem(&watch, &key);
		if (w)
			id = w->id;
	}
	u32 at = (id * 0x9E3779B97F4A7C15ULL) >> 32;
	for (u32 i = 0; i < PROBES; i++) {
		struct culprit *c = &g->culprits[(at + i) & (CULPRITS - 1)];
		if (c->id && c->id != id)
			continue;
		c->id = id;
		c->wait_ns += ns;
		c->preemptions += preemptions;
		return 0;
	}
	g->dropped_ns += ns;
	g->dropped_preemptions += preemptions;
	return 0;
}

static inline u64 cgroup_id(struct task_struct *p)
{
	u64 id = by_v2 ? p->cgroups->dfl_cgrp->kn->id : p->sched_task_group->css.cgroup->kn->id;
	return id ? id : ROOT_GROUP; // an autogroup, which only the root's tasks get
}

// subject_id is the group of a task or, in the root group, its program if that counts as one.
static inline u64 subject_id(struct task_struct *p)
{
	u64 id = cgroup_id(p);
	if (id != ROOT_GROUP || !num_programs || p->flags & PF_KTHREAD)
		return id;
	struct name name;
	bool ended = 0; // what follows the end need not be zero
	for (u32 i = 0; i < COMM; i++) {
		u8 byte = p->group_leader->comm[i];
		ended |= !byte;
		name.byte[i] = ended ? 0 : byte;
	}
	u64 *program = bpf_map_lookup_elem(&programs, &name);
	return program ? *program : id;
}

static inline u64 culprit(struct task_struct *p)
{
	if (!p->pid)
		return IDLE;
	u64 id = subject_id(p);
	if (id == ROOT_GROUP && p->flags & PF_KTHREAD)
		return KERNEL;
	return id;
}

static inline bool throttled(struct task_struct *p)
{
	if (field_exists(p->throttled)) // since 6.18
		return p->throttled;
	if (field_exists(p->se.cfs_rq->throttle_count))
		return p->se.cfs_rq->throttle_count > 0;
	return 0;
}

// settle charges what one group has waited on a CPU until now.
static inline void settle(struct cpu *c, u32 cpu, u32 group, u64 now)
{
	struct waiting *w = &c->waiting[group & (MAX_GROUPS - 1)];
	u64 ns = w->tasks * now - w->since;
	u64 id = w->throttled ? THROTTLED : c->running ? c->running : UNKNOWN;
	if (w->left) {
		u64 left = __sync_lock_test_and_set(&w->left, 0), tasks = left >> LEFT_TASKS;
		if (tasks <= w->tasks) { // else the place was another's
			w->tasks -= tasks;
			ns -= tasks * now - ((left & ((1ULL << LEFT_TASKS) - 1)) << LEFT_TIME);
		}
		if (ns >> 63) // one left before the last settle, which came before its post
			ns = 0;
		if (!w->tasks) {
			w->throttled = 0;
			c->mask &= ~(1ULL << group);
		}
	}
	w->since = w->tasks * now;
	charge(place(cpu, group), w->id, id, ns, 0);
}

// forget posts that a task has left a CPU unseen, where it would wait for ever else. That CPU's
// lock is not held: so the post is one instruction, and the next settle there takes it in.
static inline void forget(struct stamp *s, u64 now)
{
	u32 cpu = s->cpu;
	struct cpu *c = bpf_map_lookup_elem(&cpus, &cpu);
	if (!c)
		return;
	struct waiting *w = &c->waiting[s->group & (MAX_GROUPS - 1)];
	if (w->id == s->id) // rounded up: no wait is less than nothing
		__sync_fetch_and_add(&w->left, (1ULL << LEFT_TASKS) + (now >> LEFT_TIME) + 1);
}

// join has a task wait on a CPU. It may wait there already: it lost the CPU on its way to
// sleep, and now it is woken.
static inline void join(struct cpu *c, u32 cpu, struct watched *as, struct task_struct *p, u64 now)
{
	u32 group = as->group & (MAX_GROUPS - 1);
	struct waiting *w = &c->waiting[group];
	u32 pid = p->pid;
	struct stamp *s = find(pid);
	if (s && (s->since || s->cpu == cpu))
		return;
	if (s) // it moved unseen, and has run or slept since
		forget(s, now);
	else if (!(s = claim(pid))) {
		__sync_fetch_and_add(&c->lost, 1);
		return;
	}
	s->id = as->id;
	s->start = now;
	s->since = 0;
	s->cpu = cpu;
	s->group = group;
	if (w->id != as->id) { // the place was another's
		w->id = as->id;
		w->tasks = w->since = w->throttled = w->left = 0;
	}
	if (throttled(p)) {
		settle(c, cpu, group, now);
		w->throttled = 1;
	}
	w->tasks++;
	w->since += now;
	c->mask |= 1ULL << group;
}

// leave takes one task, settled, out of the waiting ones.
static inline void leave(struct cpu *c, struct stamp *s, u64 now)
{
	u32 group = s->group & (MAX_GROUPS - 1);
	struct waiting *w = &c->waiting[group];
	if (w->id != s->id || !w->tasks)
		return;
	w->tasks--;
	w->since -= now;
	if (!w->tasks) {
		w->throttled = 0;
		c->mask &= ~(1ULL << group);
	}
}

// bucket has steps of 128 ns up to 2048 ns, and 8 steps per octave from there on.
static inline u32 bucket(u64 ns)
{
	u64 v = ns >> 7;
	u32 octave = 0;
	for (u32 shift = 32; shift; shift >>= 1) {
		if (v >> shift >= 8) {
			v >>= shift;
			octave += shift;
		}
	}
	u32 i = octave * 8 + (u32)v;
	return i < BUCKETS ? i : BUCKETS - 1;
}

static inline void record(u32 cpu, struct stamp *s, u64 ns)
{
	struct group *g = group_on(cpu, s->group, s->id);
	if (!g)
		return;
	u32 i = bucket(ns);
	if (i < BUCKETS)
		g->buckets[i]++;
	g->waits++;
	g->wait_ns += ns;
}

static inline int woken(struct task_struct *p)
{
	if (p->on_cpu) // before it had gone to sleep
		return 0;
	u64 id = subject_id(p);
	struct watched *w = bpf_map_lookup_elem(&watch, &id);
	if (!w)
		return 0;
	u32 cpu = p->thread_info.cpu;
	struct cpu *c = bpf_map_lookup_elem(&cpus, &cpu);
	if (c)
		join(c, cpu, w, p, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_wakeup")
int sched_wakeup(u64 *ctx)
{
	return woken((struct task_struct *)ctx[0]);
}

SEC("tp_btf/sched_wakeup_new")
int sched_wakeup_new(u64 *ctx)
{
	return woken((struct task_struct *)ctx[0]);
}

// switch_in settles what is waited for a CPU, and ends the wait of the task that
// gets it.
static inline void switch_in(struct cpu *c, u32 cpu, struct task_struct *next, u64 now)
{
	u64 mask = c->mask;
	for (u32 i = 0; i < MAX_GROUPS && mask; i++, mask >>= 1) {
		if (mask & 1)
			settle(c, cpu, i, now);
	}

	u32 pid = next->pid;
	struct stamp *s = pid ? find(pid) : 0;
	if (!s)
		return;
	if (s->since) {
		charge(place(cpu, s->group), s->id, c->running ? c->running : UNKNOWN, now - s->since, 0);
		__sync_fetch_and_add(&migrated, -1);
	} else if (s->cpu == cpu) {
		leave(c, s, now);
	} else { // moved unseen: nothing is known of the rest of this wait
		forget(s, now);
		__sync_lock_test_and_set(&s->owner, 0);
		return;
	}
	c->waiting[s->group & (MAX_GROUPS - 1)].throttled = 0;
	record(cpu, s, now - s->start);
	__sync_lock_test_and_set(&s->owner, 0);
}

SEC("tp_btf/sched_switch")
int sched_switch(u64 *ctx)
{
	bool preempt = ctx[0];
	struct task_struct *prev = (struct task_struct *)ctx[1];
	struct task_struct *next = (struct task_struct *)ctx[2];
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu *c = bpf_map_lookup_elem(&cpus, &cpu);
	if (!c)
		return 0;
	u64 now = 0;
	if (c->mask || migrated) {
		now = bpf_ktime_get_ns();
		switch_in(c, cpu, next, now);
	}
	u64 running = culprit(next);
	c->running = running;
	// As the kernel counts nonvoluntary_ctxt_switches.
	if (!prev->pid || (!preempt && prev->__state != TASK_RUNNING))
		return 0;
	u64 id = subject_id(prev);
	struct watched *w = bpf_map_lookup_elem(&watch, &id);
	if (!w)
		return 0;
	if (!now)
		now = bpf_ktime_get_ns();
	charge(place(cpu, w->group), w->id, throttled(prev) ? THROTTLED : running, 0, 1);
	join(c, cpu, w, prev, now);
	return 0;
}

// A waiting task changes its CPU: what it has waited so far is settled with the
// old one, whose lock is held. The new one's is not, so there the rest of the
// wait is charged as a whole, when it ends, to the last that ran.
SEC("tp_btf/sched_migrate_task")
int sched_migrate_task(u64 *ctx)
{
	struct task_struct *p = (struct task_struct *)ctx[0];
	u32 pid = p->pid;
	struct stamp *s = find(pid);
	if (!s || s->since)
		return 0;
	u32 cpu = s->cpu;
	struct cpu *c = bpf_map_lookup_elem(&cpus, &cpu);
	if (!c)
		return 0;
	u64 now = bpf_ktime_get_ns();
	if (p->thread_info.cpu == cpu) {
		settle(c, cpu, s->group, now);
		leave(c, s, now);
	} else { // it had moved unseen
		forget(s, now);
	}
	s->since = now;
	__sync_fetch_and_add(&migrated, 1);
	return 0;
}

// A group is made; no process can be in it yet. One directly below the root has no
// group above it that it could count as.
SEC("tp_btf/cgroup_mkdir")
int cgroup_mkdir(u64 *ctx)
{
	struct cgroup *group = (struct cgroup *)ctx[0];
	if (group->root->hierarchy_id != hierarchy)
		return 0;
	u64 id = group->kn->id;
	u64 parent = group->self.parent->cgroup->kn->id;
	if (!parent || parent == ROOT_GROUP)
		return 0;
	struct origin m = {above_young(parent), bpf_ktime_get_ns()};
	bpf_map_update_elem(&made, &id, &m, BPF_ANY);
	return 0;
}

char license_text[] SEC("license") = "GPL";
