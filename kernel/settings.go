package kernel

import (
	"os"
	"strconv"
	"strings"

	"berth.dev/berth/kernel/knob"
)

// Subject has settings: a control group, a group of resctrl, a policy of cpufreq. The
// room of each dialect has its own.
type Subject interface {
	// Locate returns the directory of the subject's file for a knob, relative to the Root,
	// and the row's entry of that file. The error is a NotSupportedError if there is no file.
	Locate(k *knob.Knob) (dir string, f *knob.File, err error)
}

// Set plans settings of a subject in the order of the table, each by its row alone.
// Several words of one line are one step. An order of writing that depends on more than
// the table, such as a parent's limit, is for the dialect's own planner.
func Set(of Subject, settings knob.Settings) (Plan, error) {
	var plan Plan
	for _, id := range settings.IDs() {
		s, err := setStep(of, id, settings[id])
		if err != nil {
			return nil, err
		}
		plan = plan.with(s)
	}
	return plan, nil
}

func setStep(of Subject, id knob.ID, value string) (Step, error) {
	dir, f, err := of.Locate(id.Knob)
	if err != nil {
		return Step{}, err
	}
	s := Step{Path: dir + "/" + f.Name, Value: f.Text(id.Key, value)}
	switch {
	case id.Key != "" || f.Line != "":
		s.Format = Keyed
	case id.Type == knob.Set:
		s.Format = List
	case id.Type == knob.Word:
		s.Format = State
	case id.Type == knob.Bytes:
		s.Value = wholePages(s.Value)
	}
	if f.Unset != "" {
		s.Unset = id.Key + " " + f.Unset
	}
	if value != id.Default {
		for _, name := range id.Locks {
			dir, f, err := of.Locate(knob.Find(name))
			if err != nil {
				return Step{}, err
			}
			s.Disturbs = append(s.Disturbs, dir+"/"+f.Name)
		}
	}
	return s, nil
}

func wholePages(text string) string {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return text
	}
	page := int64(os.Getpagesize())
	return strconv.FormatInt(n/page*page, 10)
}

// with adds a step to a plan or, where one writes the same line already, its words to
// that one.
func (p Plan) with(s Step) Plan {
	key, words, _ := strings.Cut(s.Value, " ")
	for i := range p {
		if has, _, _ := strings.Cut(p[i].Value, " "); s.Format == Keyed && p[i].Path == s.Path && has == key {
			p[i].Value += " " + words
			return p
		}
	}
	return append(p, s)
}
