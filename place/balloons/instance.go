package balloons

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/place"
)

// balloon is an instance and its figures for an arriving workload.
type balloon struct {
	pool            *place.Pool
	num, size       int
	milli           int
	members, groups int  // groups only where the type has Slots, GroupBy or PerNamespace
	alike           bool // a member has the same GroupBy value
	mine            bool // a member is of the same group
	near            bool // a member is of the same namespace
}

// place looks for an instance of the type.
func (k *task) place(ty *Type) (place.Offer, error) {
	if err := k.mayJoin(ty); err != nil {
		return place.Offer{}, err
	}
	conf := k.s.Config()
	if ty.Name == Reserved {
		if cpus := conf.Reserved.Intersect(conf.Allowed); !cpus.IsEmpty() && k.r.Milli <= k.timeIn(cpus) {
			k.why.Note("reserved: CPUs %s", cpus)
			return k.bind(ty, cpus)
		}
	}
	o, err := k.join(ty)
	if err != nil && k.r.Milli == 0 && (ty.Name == Default || ty.Name == Reserved) && !conf.Floor.IsEmpty() {
		k.why.Note("%s: %v; on the floor", ty.Name, err)
		return k.bind(ty, conf.Floor)
	}
	return o, err
}

// mayJoin refuses a request that no member of a balloon can have.
func (k *task) mayJoin(ty *Type) error {
	refuse := func(reason string) error { return &place.RejectedError{ID: k.r.ID, Reason: reason} }
	switch k.r.Mode {
	case place.Exclusive:
		if ty.Slots != 1 {
			return refuse("balloons of type " + ty.Name + " are shared")
		}
	case place.Mixed:
		return refuse("no member of a balloon has CPUs of its own")
	}
	if k.r.BindRequired && k.r.Bind != place.BindAny {
		return refuse("the bind policy is that of " + k.kind() + ty.Name)
	}
	if text, ok := k.r.Hints[HintHide]; ok {
		if _, err := strconv.ParseBool(text); err != nil {
			return refuse("hint " + HintHide + " is neither true nor false")
		}
	}
	for _, hint := range []string{HintLists, HintSocket} {
		text, ok := k.r.Hints[hint]
		if n, err := strconv.Atoi(text); ok && (err != nil || n < 0) {
			return refuse("hint " + hint + " is not a number")
		}
		if ok && len(ty.Lists) == 0 {
			return refuse(k.kind() + ty.Name + " has no lists")
		}
	}
	return nil
}

// bind puts the workload into a part of the default pool.
func (k *task) bind(ty *Type, cpus cpuset.Set) (place.Offer, error) {
	return k.finish(k.s.Offer(), place.Share{Within: cpus, Milli: k.r.Milli, OneThread: k.hides(ty)}, cpus)
}

// timeIn returns the CPU time left in a part of the default pool.
func (k *task) timeIn(cpus cpuset.Set) int {
	milli, _ := k.s.SharedMilli(cpus)
	return 1000*cpus.Len() - milli
}

// join tries the steps from a balloon with friends to a new one. If all fail, it
// returns the last error that says more than that there is no such balloon.
func (k *task) join(ty *Type) (o place.Offer, err error) {
	all := k.survey(ty)
	free := k.free().Len()
	every := func(*balloon) bool { return true }
	var last error
	for _, step := range []struct {
		when bool
		what string // "" is a new balloon
		grow bool
		only func(b *balloon) bool
	}{
		{ty.GroupBy != "" && expand(ty.GroupBy, k.r) != "", "balloon of its GroupBy value", true, func(b *balloon) bool { return b.alike }},
		{!ty.SpreadPods && k.r.Group != "", "balloon of its group", true, func(b *balloon) bool { return b.mine }},
		{ty.PerNamespace, "balloon of its namespace", true, func(b *balloon) bool { return b.near }},
		{ty.PerNamespace || ty.PreferNew, "", true, nil},
		{true, "balloon with room", false, every},
		{true, "balloon to grow", true, every},
		{true, "", true, nil},
	} {
		switch {
		case !step.when:
			continue
		case step.what == "":
			o, err = k.fresh(ty, all)
		default:
			o, err = k.existing(ty, all, free, step.what, step.grow, step.only)
		}
		if err == nil {
			return o, nil
		}
		if !errors.Is(err, errNone) {
			last = err
		}
	}
	return o, last
}

var errNone = errors.New("no such balloon")

// survey returns the instances of a type.
func (k *task) survey(ty *Type) []balloon {
	n := 0
	for pool := range k.s.Pools() {
		if typeName(pool) == ty.Name {
			n++
		}
	}
	f := fleet{prefix: ty.Name + "/", all: make([]balloon, 0, n)}
	for pool, load := range k.s.Pools() {
		if typeName(pool) == ty.Name {
			f.all = append(f.all, balloon{pool: pool, num: number(pool.Name), size: pool.CPUs.Len(), milli: load.Milli, members: load.Grants})
		}
	}
	inspect := ty.GroupBy != "" || ty.PerNamespace || ty.Slots > 0
	if k.r.Group != "" || inspect {
		f.index()
	}
	if k.r.Group != "" {
		for g := range k.s.Members(k.r.Group) {
			if b := f.of(g); b != nil {
				b.mine = true
			}
		}
	}
	if inspect {
		k.inspect(ty, &f)
	}
	return f.all
}

// fleet are the instances of a type.
type fleet struct {
	prefix string // of their names
	all    []balloon
	at     []int // by number: position in all, -1 for no instance
}

func (f *fleet) index() {
	f.at = make([]int, 0, len(f.all))
	for i := range f.all {
		for f.all[i].num >= len(f.at) {
			f.at = append(f.at, -1)
		}
		f.at[f.all[i].num] = i
	}
}

// of returns the instance that a grant is a member of, or nil.
func (f *fleet) of(g *place.Grant) *balloon {
	if !strings.HasPrefix(g.Share.Pool, f.prefix) {
		return nil
	}
	if n := number(g.Share.Pool); n < len(f.at) && f.at[n] >= 0 {
		return &f.all[f.at[n]]
	}
	return nil
}

// inspect looks at the members. Each counts as a group of its own but those that
// share one in the same instance.
func (k *task) inspect(ty *Type, f *fleet) {
	type seat struct {
		num   int
		group string
	}
	seats := map[seat]bool{}
	value := expand(ty.GroupBy, k.r)
	every := ty.GroupBy != "" || ty.PerNamespace
	for i := range f.all {
		f.all[i].groups = f.all[i].members
	}
	for g := range k.s.Grants() {
		r := &g.Request
		grouped := ty.Slots > 0 && r.Group != "" && !ty.SpreadPods
		if !every && !grouped {
			continue
		}
		b := f.of(g)
		if b == nil {
			continue
		}
		b.alike = b.alike || ty.GroupBy != "" && expand(ty.GroupBy, r) == value
		b.near = b.near || r.Namespace == k.r.Namespace
		if at := (seat{b.num, r.Group}); grouped && seats[at] {
			b.groups--
		} else if grouped {
			seats[at] = true
		}
	}
}

// existing joins the best instance among some.
func (k *task) existing(ty *Type, all []balloon, free int, what string, grow bool, only func(*balloon) bool) (place.Offer, error) {
	c := place.Choice{
		Name: what, Criteria: []string{"time left", "members"}, Count: len(all),
		Fits: func(i int) string {
			if !only(&all[i]) {
				return "not one of those"
			}
			return k.tooFull(ty, &all[i], free, grow)
		},
		Rank: func(i int) place.Rank {
			b := &all[i]
			left := 1000*k.reach(ty, b, free, grow) - b.milli
			if ty.Overcommit {
				left = 0
			}
			members := b.members
			if ty.Slots > 0 {
				members = b.groups
			}
			switch ty.Fill {
			case Fullest:
				return place.Rank{left, -members}
			case FirstFree:
				return place.Rank{}
			}
			return place.Rank{-left, members}
		},
		Tie:   func(i int) int { return all[i].num },
		Label: func(i int) string { return all[i].pool.Name },
	}
	at := c.Best(k.why)
	if at < 0 {
		return place.Offer{}, errNone
	}
	return k.enter(ty, all[at].pool, all[at].milli)
}

// reach returns the most CPUs that an instance has or could have.
func (k *task) reach(ty *Type, b *balloon, free int, grow bool) int {
	n := b.size
	if grow && len(ty.Lists) == 0 && !ty.Overcommit {
		n += free
		if ty.MaxCPUs > 0 {
			n = min(n, ty.MaxCPUs)
		}
	}
	return n
}

// tooFull says why a workload cannot join an instance, "" if it can.
func (k *task) tooFull(ty *Type, b *balloon, free int, grow bool) string {
	if ty.Slots > 0 && b.groups >= ty.Slots && (!b.mine || ty.SpreadPods) {
		return "no slot"
	}
	if len(ty.Lists) > 0 && !k.onSocket(b.pool.CPUs) {
		return "on another socket"
	}
	if k.r.NodesRequired && !k.required(b.pool.CPUs).Contains(b.pool.CPUs) {
		return "on other nodes"
	}
	if ty.Overcommit {
		return ""
	}
	need, ok := k.needs(ty, b, b.milli+k.r.Milli)
	switch {
	case !ok:
		return "more than its type may have (maxCPUs)"
	case need == 0:
		return ""
	case !grow:
		return k.detail("too little time left", b, free)
	case need > free || len(ty.Lists) > 0:
		return k.detail("too few CPUs to grow", b, free)
	}
	return ""
}

// detail adds the figures to a reason, if an explanation is asked for.
func (k *task) detail(reason string, b *balloon, free int) string {
	if k.why == nil {
		return reason
	}
	return fmt.Sprintf("%s (%d CPUs, %dm taken, %d CPUs free)", reason, b.size, b.milli, free)
}

// noMore refuses a workload whose type has all its balloons, and says why it cannot join
// one of them.
func (k *task) noMore(ty *Type, all []balloon) error {
	e := &place.RejectedError{ID: k.r.ID}
	plainly := *k
	plainly.why = nil // the refusal is the same with an explanation
	free, reasons := k.free().Len(), make([]string, len(all))
	for i := range all {
		b := &all[i]
		need, ok := k.needs(ty, b, b.milli+k.r.Milli)
		e.Short = e.Short || ok && need > free
		reasons[i] = b.pool.Name
		if members := k.s.PoolMembers(b.pool.Name); len(members) > 0 {
			reasons[i] += " of " + place.Names(members)
		}
		reasons[i] += ": " + cmp.Or(plainly.tooFull(ty, b, free, true), "not for it")
	}
	full := strings.Join(reasons, "; ")
	if e.Reason = fmt.Sprintf("no balloon of type %s has room (%s), and there may be no more (maxBalloons; instances)", ty.Name, full); k.As != "" {
		e.Reason = fmt.Sprintf("the pool %s has no room (%s)", ty.Name, full)
	}
	return e
}

// onSocket reports whether CPUs are on the socket that the request names, if any.
func (k *task) onSocket(cpus cpuset.Set) bool {
	text, ok := k.r.Hints[HintSocket]
	if !ok {
		return true
	}
	id, _ := strconv.Atoi(text)
	for pos, u := range k.t.Units(machine.Socket) {
		if u.ID == id {
			return k.t.Units(machine.Socket)[pos].CPUs.Contains(cpus)
		}
	}
	return false
}

// fresh joins an empty instance or makes one.
func (k *task) fresh(ty *Type, all []balloon) (place.Offer, error) {
	empty := func(b *balloon) bool { return b.members == 0 }
	if slices.ContainsFunc(all, func(b balloon) bool { return b.members == 0 }) {
		if o, err := k.existing(ty, all, k.free().Len(), "empty balloon", true, empty); err == nil {
			return o, nil
		}
	}
	if ty.MaxBalloons > 0 && k.count(ty.Name) >= ty.MaxBalloons {
		return place.Offer{}, k.noMore(ty, all)
	}
	taken := make([]bool, len(all)+1)
	for i := range all {
		if n := all[i].num; n < len(taken) {
			taken[n] = true
		}
	}
	pool := place.Pool{Name: name(ty, slices.Index(taken, false))}
	k.why.Note("new balloon %s", pool.Name)
	o, err := k.enter(ty, &pool, 0)
	if err != nil {
		k.why.Note("no new balloon %s: %v", pool.Name, err)
	}
	return o, err
}

// enter makes the workload a member of an instance with the given load.
func (k *task) enter(ty *Type, pool *place.Pool, milli int) (place.Offer, error) {
	next, err := k.fit(ty, pool, milli+k.r.Milli)
	if err != nil {
		return place.Offer{}, err
	}
	o := k.s.Offer()
	if next != *pool {
		o.Pools = []place.Pool{next}
	}
	return k.finish(o, place.Share{Pool: next.Name, Milli: k.r.Milli, OneThread: k.hides(ty)}, next.CPUs)
}

// count returns how many instances of a type there are, parts of composites
// included.
func (k *task) count(name string) int {
	n := 0
	for pool := range k.s.Pools() {
		for f := range strings.FieldsSeq(pool.Kind) {
			if part, _, _ := strings.Cut(f, "="); part == name {
				n++
			}
		}
	}
	return n
}

func name(ty *Type, n int) string { return ty.Name + "/" + strconv.Itoa(n) }

// number returns the number in the name of an instance.
func number(name string) int {
	n, _ := strconv.Atoi(name[strings.LastIndexByte(name, '/')+1:])
	return min(max(n, 0), cpuset.Limit) // there are no more CPUs than that
}

// typeName returns the name of the type of an instance, "" for no instance.
func typeName(pool *place.Pool) string {
	if pool == nil {
		return ""
	}
	name, _, _ := strings.Cut(pool.Kind, " ")
	return name
}
