package nri

import (
	"errors"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/machine"
	"berth.dev/berth/machine/sysfs"
	"berth.dev/berth/podwords"
)

// Words say how what pods say is read, and what holds where they say nothing.
type Words struct {
	// Rules say which words of pods count.
	Rules podwords.Rules
	// Hints are those that the policy knows; nil is all.
	Hints []string
	// Strict refuses every container of which a word cannot be followed.
	Strict bool
	// PodScope places pods as a whole that do not say otherwise. A policy that places pods by
	// its own settings (place.PodPlacer) does so in any case.
	PodScope bool
}

// SetWords changes how the words of pods are read from now on. Containers that have a place keep it.
func (p *Plugin) SetWords(w Words) error {
	if err := w.Rules.Validate(); err != nil {
		return err
	}
	p.wording.Store(&w)
	return nil
}

// words reads what a pod says for one of its containers.
func (p *Plugin) words(pod *api.PodSandbox, container string) podwords.Reading {
	w := p.wording.Load()
	of := podwords.Pod{Namespace: pod.GetNamespace(), Name: pod.GetName(), Labels: pod.GetLabels(), Annotations: pod.GetAnnotations(), HostNetwork: hasHostNetwork(pod)}
	memory := func(kinds []machine.MemoryKind) error {
		_, err := p.memoryOf(kinds)
		return err
	}
	return podwords.Read(&of, container, podwords.Options{Rules: w.Rules, Hints: w.Hints, Class: p.class, Bandwidth: p.bandwidth, Memory: memory, Node: true})
}

// memoryOf are the NUMA nodes with each of these kinds of memory.
func (p *Plugin) memoryOf(kinds []machine.MemoryKind) ([]cpuset.Set, error) {
	all, err := sysfs.ReadMemories(p.opt.Node.Root.FS())
	if err != nil {
		return nil, err
	}
	return all.Nodes(kinds)
}

// hasHostNetwork reports whether a pod is known to have the host's network: its runtime tells its
// namespaces, and none for the network.
func hasHostNetwork(pod *api.PodSandbox) bool {
	all := pod.GetLinux().GetNamespaces()
	return len(all) > 0 && !slices.ContainsFunc(all, func(n *api.LinuxNamespace) bool { return n.GetType() == "network" })
}

// problems reports each problem of a pod once. If the pod, or the node, is strict, it returns them as an error.
func (p *Plugin) problems(pod *api.PodSandbox, c *api.Container, r *podwords.Reading) error {
	var fresh []podwords.Problem
	p.mu.Lock()
	reported := p.reported[pod.GetId()]
	if reported == nil && len(r.Problems) > 0 {
		reported = map[string]bool{}
		p.reported[pod.GetId()] = reported
	}
	for _, problem := range r.Problems {
		if text := problem.Error(); !reported[text] {
			reported[text] = true
			fresh = append(fresh, problem)
		}
	}
	p.mu.Unlock()
	for i := range fresh {
		p.emit(about(Word, pod, c, "%v", &fresh[i]))
	}
	if p.wording.Load().Strict || r.Strict() {
		hard := slices.DeleteFunc(slices.Clone(r.Problems), func(p podwords.Problem) bool { return p.Kind == podwords.Contradiction })
		if err := podwords.Problems(hard); err != nil {
			return &RefusedError{errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))}
		}
	}
	return nil
}
