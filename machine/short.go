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
	levels, err := parseShort(form)
	if err != nil {
		return nil, fmt.Errorf("short form %q: %w", form, err)
	}
	m := &Machine{Name: form}
	total := 1
	for _, l := range levels {
		total *= l.count
	}
	m.Online, _ = cpuset.Range(0, total-1)
	for id := range total {
		m.CPUs = append(m.CPUs, CPU{ID: id})
	}
	b := shortBuilder{levels: levels, cores: total / levels.count('t'), threads: levels.count('t')}
	m.Domains = b.domains()
	m.Distances = b.distances(m)
	return m, nil
}

type shortLevel struct {
	letter byte
	count  int
}

type shortLevels []shortLevel

func (s shortLevels) index(letter byte) int {
	for i, l := range s {
		if l.letter == letter {
			return i
		}
	}
	return -1
}

func (s shortLevels) count(letter byte) int {
	if i := s.index(letter); i >= 0 {
		return s[i].count
	}
	return 1
}

func parseShort(form string) (shortLevels, error) {
	var levels shortLevels
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
		case levels.index(form[i]) >= 0:
			return nil, fmt.Errorf("%q is there twice", form[i:i+1])
		}
		if total *= count; total > cpuset.Limit {
			return nil, fmt.Errorf("more than %d CPUs", cpuset.Limit)
		}
		levels = append(levels, shortLevel{form[i], count})
	}
	return levels, levels.check()
}

func (s shortLevels) check() error {
	core, thread := s.index('c'), s.index('t')
	switch {
	case core < 0:
		return errors.New("cores (c) are missing")
	case thread < 0 && core != len(s)-1, thread >= 0 && (thread != len(s)-1 || core != len(s)-2):
		return errors.New("cores (c), then threads (t), come last")
	}
	return nil
}

// shortBuilder numbers cores from 0 in the order of the form; thread j of core
// i is CPU i + j*cores.
type shortBuilder struct {
	levels         shortLevels
	cores, threads int
}

// coresPer returns how many consecutive cores one item of the letter's level
// has. A level that the form leaves out is the socket's.
func (b shortBuilder) coresPer(letter byte) int {
	at := b.levels.index(letter)
	if at < 0 {
		if letter == 's' {
			return b.cores
		}
		return b.coresPer('s')
	}
	n := b.cores
	for _, l := range b.levels[:at+1] {
		n /= l.count
	}
	return n
}

func (b shortBuilder) domains() []Domain {
	perSocket := b.coresPer('s')
	var out []Domain
	for _, level := range []struct {
		kind Kind
		per  int
	}{
		{Socket, perSocket}, {Die, b.coresPer('d')}, {Node, b.coresPer('n')},
		{L3, b.coresPer('l')}, {L2, 1}, {Core, 1},
	} {
		for id := range b.cores / level.per {
			kernelID := id
			if perParent := perSocket / level.per; (level.kind == Die || level.kind == Core) && perParent > 0 {
				kernelID = id % perParent // the kernel numbers these within a socket
			}
			out = append(out, Domain{Kind: level.kind, ID: id, CPUs: b.cpus(id*level.per, level.per), KernelID: kernelID})
		}
	}
	return out
}

func (b shortBuilder) cpus(firstCore, n int) cpuset.Set {
	var s cpuset.Set
	for t := range b.threads {
		r, _ := cpuset.Range(firstCore+t*b.cores, firstCore+n-1+t*b.cores)
		s = s.Union(r)
	}
	return s
}

func (b shortBuilder) distances(m *Machine) [][]int {
	nodes := m.ByKind(Node)
	rows := make([][]int, len(nodes))
	for i := range nodes {
		rows[i] = make([]int, len(nodes))
		for j := range nodes {
			rows[i][j] = b.distance(m, nodes[i], nodes[j])
		}
	}
	return rows
}

func (b shortBuilder) distance(m *Machine, from, to Domain) int {
	if from.ID == to.ID {
		return 10
	}
	cpu, _ := from.CPUs.First()
	if socket, _ := m.Of(Socket, cpu); socket.CPUs.Contains(from.CPUs.Union(to.CPUs)) {
		return 12
	}
	return 20
}
