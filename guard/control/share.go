package control

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/guard/detect"
	"berth.dev/berth/kernel/knob"
)

// Share is what a group has at most, of each last-level cache and of the memory bandwidth
// beyond it, or of a network link; 0 leaves it as it is.
type Share struct {
	Ways int `json:"ways,omitzero"`
	// Bandwidth is in the unit of the host (Cache.Unit).
	Bandwidth int64 `json:"bandwidth,omitzero"`
	// Unit is for readers: "%".
	Unit string `json:"unit,omitzero"`
	// Send is how many bytes per second it may send by Device, a network device.
	Send   int64  `json:"send,omitzero"`
	Device string `json:"device,omitzero"`
	// Used is the bandwidth that the group had, or what it sent, before it was first limited, in the
	// same unit; 0 where the limit is a share of what the CPU can.
	Used int64 `json:"-"`
}

// String says it in words: "4 ways".
func (s Share) String() string {
	var words []string
	if s.Ways > 0 {
		words = append(words, strconv.Itoa(s.Ways)+" ways")
	}
	if s.Bandwidth > 0 {
		words = append(words, strconv.FormatInt(s.Bandwidth, 10)+" "+s.Unit)
	}
	if s.Send > 0 {
		words = append(words, s.rate())
	}
	return strings.Join(words, ", ")
}

// rate is Send in words.
func (s Share) rate() string {
	return fmt.Sprintf("%.3g Mbit/s over %s", float64(s.Send)*8/1e6, s.Device)
}

// settings are those of an action by the table of knobs.
func (a *Action) settings() knob.Settings {
	all := a.Limits.Settings()
	if a.Share.Ways > 0 {
		all[knob.ID{Knob: knob.Find("cacheWays")}] = strconv.Itoa(a.Share.Ways)
	}
	if a.Share.Bandwidth > 0 {
		all[knob.ID{Knob: knob.Find("memoryBandwidth")}] = strconv.FormatInt(a.Share.Bandwidth, 10)
	}
	if a.Share.Send > 0 {
		all[knob.ID{Knob: knob.Find("sendRate")}] = strconv.FormatInt(a.Share.Send, 10)
	}
	return all
}

// Cache is what a group has of last-level caches and memory bandwidth without what the loop
// did.
type Cache struct {
	// Why says why nothing of it can be taken away; "" if it can.
	Why string
	// Ways is how many ways of a cache the group has where it has most, of Of, and LeastWays
	// how many a group has at least; a Ways of 0 is that caches are not divided here.
	Ways, Of, LeastWays int
	// Bandwidth is the limit where it is widest, LeastBandwidth the lowest that there is, and
	// Step what lies between two; a Bandwidth of 0 is that none is limited here.
	Bandwidth, LeastBandwidth, Step int64
	// Unit is what these count, Bytes how many bytes per second that is; 0 is a share of what the CPU
	// can.
	Unit  string
	Bytes float64
}

// leastShare is the part of caches and bandwidth that best-effort work keeps: Heracles gives it a
// tenth of the cache to begin with (section 4.3).
const leastShare = 0.1

// cacheWays halves the ways that the suspect may fill. One way is less than can be told from
// noise; on the way back it gets one at a time.
var cacheWays = Remedy{
	Name:  detect.CacheWays,
	Knobs: []string{"cacheWays"},
	Below: true,
	Delay: 2 * time.Second, // lines stay until others take their place
	Divide: func(c *Case) (to Share, reason string) {
		have := c.Group.Cache
		switch {
		case have.Why != "":
			return to, have.Why
		case have.Ways == 0:
			return to, "caches are not divided here"
		}
		ways := have.Ways
		if c.HeldShare != nil {
			ways = c.HeldShare.Ways
		}
		floor := max(have.LeastWays, int(math.Ceil(leastShare*float64(have.Of))))
		to.Ways = max(floor, int(math.Ceil(shrinkBy*float64(ways))))
		if to.Ways >= ways {
			return Share{}, fmt.Sprintf("%d ways of a cache are the least that best-effort work keeps", floor)
		}
		return to, ""
	},
	Widen: func(c *Case, from Share, before *Share) (to Share, ok bool) {
		most := c.Group.Cache.Ways
		if before != nil {
			most = before.Ways
		}
		to.Ways = from.Ways + 1
		return to, to.Ways < most
	},
}

// bandwidthCap halves the memory bandwidth that the suspect may have, in steps of the CPU. Where
// that is counted in bytes, and there is no limit yet, it begins at half of what the suspect
// has, a tenth of which it keeps; a limit of all that it had binds no more.
var bandwidthCap = Remedy{
	Name:  detect.BandwidthCap,
	Knobs: []string{"memoryBandwidth"},
	Below: true,
	Divide: func(c *Case) (to Share, reason string) {
		have := c.Group.Cache
		switch {
		case have.Why != "":
			return to, have.Why
		case have.Bandwidth == 0:
			return to, "memory bandwidth is not limited here"
		}
		now, used := have.Bandwidth, int64(100)
		switch {
		case c.HeldShare != nil:
			now, to.Used = c.HeldShare.Bandwidth, c.HeldShare.Used
		case have.Bytes == 0:
		case !(c.Group.Traffic > 0):
			return to, "how much memory bandwidth the suspect has is not known"
		default:
			now = min(now, int64(c.Group.Traffic/have.Bytes))
			to.Used = now
		}
		if have.Bytes != 0 {
			used = to.Used
		}
		floor := max(have.LeastBandwidth, int64(math.Ceil(leastShare*float64(used))))
		step := cmp.Or(have.Step, 1)
		half := have.LeastBandwidth + (int64(shrinkBy*float64(now))-have.LeastBandwidth+step-1)/step*step
		to.Bandwidth, to.Unit = max(floor, half), have.Unit
		if to.Bandwidth >= now {
			return Share{}, fmt.Sprintf("%d %s of memory bandwidth is the least that best-effort work keeps", floor, have.Unit)
		}
		return to, ""
	},
	Widen: func(c *Case, from Share, before *Share) (to Share, ok bool) {
		have := c.Group.Cache
		most := have.Bandwidth
		if before != nil {
			most = before.Bandwidth
		}
		if from.Used > 0 {
			most = min(most, from.Used)
		}
		step := max(have.Step, from.Bandwidth/10)
		to = Share{Bandwidth: from.Bandwidth + (step+have.Step-1)/max(have.Step, 1)*have.Step, Unit: from.Unit, Used: from.Used}
		return to, have.Step > 0 && to.Bandwidth < most
	},
}

// Sending is what a group may send over a network link without what the loop did, in bytes per
// second.
type Sending struct {
	// Link is the number of the link, Device the name of its device.
	Link   int
	Device string
	// Why says why it cannot be lowered; "" if it can.
	Why string
	// Floor and Ceiling are those of the group's network class. Sent is what it sends; 0 is unknown.
	Floor, Ceiling int64
	Sent           float64
}

// leastSend is the least rate, in bytes per second: that of a network class without a floor.
const leastSend = 1000

// sendCap halves what the suspect may send over the link that the victim waits for, beginning at half
// of what it sends. It keeps a tenth of that, and the floor of its network class.
var sendCap = Remedy{
	Name:  detect.SendCap,
	Knobs: []string{"sendRate"},
	Below: true,
	Delay: time.Second, // what waits already is sent first
	Divide: func(c *Case) (to Share, reason string) {
		i := slices.IndexFunc(c.Group.Sending, func(s Sending) bool { return c.Victim.Link > 0 && s.Link == c.Victim.Link })
		if i < 0 {
			return to, "what it may send over the victim's link is not known"
		}
		have := c.Group.Sending[i]
		now := have.Ceiling
		switch {
		case have.Why != "":
			return to, have.Why
		case c.HeldShare != nil && c.HeldShare.Device != have.Device:
			return to, "another link is full by now"
		case c.HeldShare != nil:
			now, to.Used = min(now, c.HeldShare.Send), c.HeldShare.Used
		case !(have.Sent > 0):
			return to, "how much it sends over the link is not known: its network may be one of its own"
		default:
			now = min(now, int64(have.Sent))
			to.Used = now
		}
		floor := max(leastSend, have.Floor, int64(math.Ceil(leastShare*float64(to.Used))))
		if to.Send, to.Device = max(floor, int64(shrinkBy*float64(now))), have.Device; to.Send >= now {
			to.Send = floor
			return Share{}, to.rate() + " is the least that it keeps"
		}
		return to, ""
	},
	Widen: func(_ *Case, from Share, before *Share) (to Share, ok bool) {
		to, most := from, from.Used
		if before != nil {
			most = min(most, before.Send)
		}
		to.Send += max(from.Used/10, 1)
		return to, to.Send < most
	},
}

// shareSentence says in plain words what a group has.
func shareSentence(group string, s Share) string {
	switch {
	case s.Send > 0:
		return fmt.Sprintf("%s sends at most %s", group, s.rate())
	case s.Ways > 0:
		return fmt.Sprintf("%s may fill %d ways of each last-level cache", group, s.Ways)
	}
	return fmt.Sprintf("%s has at most %d %s of memory bandwidth", group, s.Bandwidth, s.Unit)
}
