package machine

import (
	"errors"
	"fmt"
	"strings"

	"berth.dev/berth/cpuset"
)

// Short builds a synthetic machine from a short form: counts, each followed by
// a letter, from the outermost level to the innermost.
//
//	s sockets   d dies   n NUMA nodes   l L3 domains   c cores   t threads
//
// Every count is per item of the level before it, so the product of all counts
// is the number of CPUs: "2s4n16c2t" is 2 sockets, each with 4 nodes, each
// with 16 cores of 2 threads: 256 CPUs. The order is that of nesting:
// "2n2s8c" has two sockets in each node. c is required; t, if present, follows
// it as the last. Without t a core has one thread, without s there is one
// socket, and without d, n or l there is one of these per socket. Each core has
// its own L2. Sizes and frequencies are unknown.
//
// CPUs are numbered as on servers: first the first threads of all cores, then
// the second ones. Distances are 10 within a node, 12 between nodes that share
// a socket, 20 otherwise.
func Short(form string) (*Machine, error) {
	f, err := parseShort(form)
	if err != nil {
		return nil, fmt.Errorf("short form %q: %w", form, err)
	}
	m := &Machine{Name: form, Domains: f.domains()}
	total := f.cores * f.threads
	m.Online, _ = cpuset.Range(0, total-1)
	for id := range total {
		m.CPUs = append(m.CPUs, CPU{ID: id})
	}
	m.measure()
	return m, nil
}

// shortForm is a short form. Its cores are numbered from 0 in the order of the form;
// thread j of core i is CPU i + j*cores.
type shortForm struct {
	letters        string // of the levels, from the outermost on
	counts         []int  // by level
	cores, threads int
}

func parseShort(form string) (*shortForm, error) {
	f := &shortForm{threads: 1}
	total := 1
	for i := 0; i < len(form); i++ {
		start, count := i, 0
		for ; i < len(form) && form[i] >= '0' && form[i] <= '9'; i++ {
			if count = count*10 + int(form[i]-'0'); count > cpuset.Limit {
				return nil, fmt.Errorf("more than %d CPUs", cpuset.Limit)
			}
		}
		switch {
		case i == start:
			return nil, fmt.Errorf("a count is missing before %q", form[i:])
		case i == len(form):
			return nil, fmt.Errorf("a letter is missing after %q", form)
		case count == 0:
			return nil, fmt.Errorf("%q counts nothing", form[start:i+1])
		case strings.IndexByte("sdnlct", form[i]) < 0:
			return nil, fmt.Errorf("%q is none of the letters s, d, n, l, c, t", form[i:i+1])
		case strings.IndexByte(f.letters, form[i]) >= 0:
			return nil, fmt.Errorf("%q is there twice", form[i:i+1])
		}
		if total *= count; total > cpuset.Limit {
			return nil, fmt.Errorf("more than %d CPUs", cpuset.Limit)
		}
		f.letters, f.counts = f.letters+form[i:i+1], append(f.counts, count)
	}
	outer, threads := strings.CutSuffix(f.letters, "t")
	switch {
	case !strings.Contains(f.letters, "c"):
		return nil, errors.New("cores (c) are missing")
	case strings.Contains(outer, "t") || !strings.HasSuffix(outer, "c"):
		return nil, errors.New("cores (c), then threads (t), come last")
	case threads:
		f.threads = f.counts[len(outer)]
	}
	f.cores = total / f.threads
	return f, nil
}

// coresPer returns how many consecutive cores one item of the letter's level
// has. A level that the form leaves out is the socket's.
func (f *shortForm) coresPer(letter byte) int {
	at := strings.IndexByte(f.letters, letter)
	if at < 0 && letter != 's' {
		return f.coresPer('s')
	}
	n := f.cores
	for _, count := range f.counts[:at+1] {
		n /= count
	}
	return n
}

func (f *shortForm) domains() []Domain {
	perSocket := f.coresPer('s')
	var out []Domain
	for _, level := range []struct {
		kind Kind
		per  int
	}{
		{Socket, perSocket}, {Die, f.coresPer('d')}, {Node, f.coresPer('n')},
		{L3, f.coresPer('l')}, {L2, 1}, {Core, 1},
	} {
		for id := range f.cores / level.per {
			kernelID := id
			if perParent := perSocket / level.per; (level.kind == Die || level.kind == Core) && perParent > 0 {
				kernelID = id % perParent // the kernel numbers these within a socket
			}
			out = append(out, Domain{Kind: level.kind, ID: id, CPUs: f.cpus(id*level.per, level.per), KernelID: kernelID})
		}
	}
	return out
}

func (f *shortForm) cpus(firstCore, n int) cpuset.Set {
	var s cpuset.Set
	for t := range f.threads {
		r, _ := cpuset.Range(firstCore+t*f.cores, firstCore+n-1+t*f.cores)
		s = s.Union(r)
	}
	return s
}

// measure sets the distances between the nodes.
func (m *Machine) measure() {
	for i, from := range m.ByKind(Node) {
		first, _ := from.CPUs.First()
		socket, _ := m.Of(Socket, first)
		var row []int
		for j, to := range m.ByKind(Node) {
			switch {
			case i == j:
				row = append(row, 10)
			case socket.CPUs.Contains(from.CPUs.Union(to.CPUs)):
				row = append(row, 12)
			default:
				row = append(row, 20)
			}
		}
		m.Distances = append(m.Distances, row)
	}
}
