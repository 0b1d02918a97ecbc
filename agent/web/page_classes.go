package web

import (
	"fmt"
	"strings"

	"berth.dev/berth/agent"
)

// Classes are the classes of one kind, in words.
type Classes struct {
	Kind agent.ClassKind `json:"kind"`
	// About says what is left: "4 of 16 CLOSIDs left".
	About string `json:"about,omitempty"`
	// Lines say of each class what it has and who has it.
	Lines []string `json:"lines"`
}

// classesOf are the kinds that this host has.
func classesOf(r agent.ClassReport) []Classes {
	all := []Classes{}
	for i := range r.Kinds {
		s := &r.Kinds[i]
		if s.Lacks() != nil || len(s.Classes) == 0 {
			continue
		}
		var left []string
		for _, supply := range s.Supplies {
			left = append(left, fmt.Sprintf("%d of %d %s left", supply.Left, supply.Total, supply.Name))
		}
		c := Classes{Kind: s.Kind, About: strings.Join(left, ", ")}
		for k := range s.Classes {
			c.Lines = append(c.Lines, classLine(&s.Classes[k]))
		}
		c.Lines = append(c.Lines, s.Notes...)
		all = append(all, c)
	}
	return all
}

func classLine(c *agent.ClassUse) string {
	var has []string
	for _, v := range c.Settings {
		has = append(has, v.Of+" "+v.Value)
	}
	who := "nobody has it"
	switch {
	case c.Foreign:
		who = "another program's"
	case len(c.Workloads) > 0:
		who = strings.Join(c.Workloads, ", ")
	case c.Tasks > 0:
		who = fmt.Sprintf("%d threads", c.Tasks)
	}
	return fmt.Sprintf("%s: %s (%s)", c.Name, strings.Join(has, ", "), who)
}
