package balloons

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/cpuset"
	"berth.dev/berth/place"
)

// StaticPool returns a pool of static-pools as a balloon type: fixed lists of
// CPUs, joined by the hint HintType. An exclusive pool gives each workload the
// first free list, or as many as the hint HintLists says; a shared one sends it
// to the list with the fewest members and does not count CPU time. HintSocket
// narrows the lists to a socket.
func StaticPool(name string, exclusive bool, lists ...cpuset.Set) Type {
	ty := Type{Name: name, Lists: lists, Overcommit: true, SpreadPods: true}
	if exclusive {
		ty.Slots, ty.PreferNew = 1, true
		return ty
	}
	ty.PreferNew = true // every list is used before one is used twice
	return ty
}

// PodPool returns a pool of podpools as a balloon type: a number of instances of
// so many CPUs, each for at most maxPods groups, which take their slots whole. It
// is joined by the hint HintType; a group without slot goes to the type default.
// CPU time is not counted, as slots are what is given away.
func PodPool(name string, cpus, instances, maxPods int, fill Fill) Type {
	return Type{
		Name: name, MinCPUs: cpus, MaxCPUs: cpus, MinBalloons: instances, MaxBalloons: instances,
		Slots: maxPods, Overcommit: true, Fill: fill, ElseDefault: true,
	}
}

// PodPoolInstances reads how many instances of so many CPUs podpools makes of
// allocatable CPUs: "3" instances, as many as "8 CPUs" or "25 %" have room for.
// The error is of type *place.InvalidError.
func PodPoolInstances(text string, cpus, allocatable int) (int, error) {
	invalid := func(reason string) (int, error) {
		return 0, &place.InvalidError{Reason: fmt.Sprintf("pod pool instances %q: %s", text, reason)}
	}
	if cpus < 1 || allocatable < 0 {
		return invalid("an instance has at least one CPU")
	}
	text = strings.TrimSpace(text)
	digits := strings.TrimRight(text, " %CPUcpus")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return invalid("no number")
	}
	switch unit := strings.TrimSpace(text[len(digits):]); unit {
	case "":
	case "%":
		if n > 100 {
			return invalid("more than all")
		}
		n = n * allocatable / 100 / cpus
	case "CPU", "CPUs", "cpu", "cpus":
		n /= cpus
	default:
		return invalid("unknown unit " + unit)
	}
	if n*cpus > allocatable {
		return invalid(fmt.Sprintf("%d CPUs are too few", allocatable))
	}
	return n, nil
}

// sameNeeds reports whether two requests want the same besides CPU time.
func sameNeeds(a, b *place.Request) bool {
	return slices.Equal(a.Memory, b.Memory) && slices.EqualFunc(a.Devices, b.Devices, func(a, b place.DeviceRequest) bool {
		return a.Kind == b.Kind && a.Count == b.Count && slices.Equal(a.Names, b.Names)
	})
}
