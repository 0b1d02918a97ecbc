package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/desired"
	"berth.dev/berth/place"
)

// settings are what a node was opened with. They are kept beside the records, so that
// a process without a configuration reads, and changes, the records under the settings
// that they were made under. An agent's hold until those of another agent; other
// openers' hold as long as there are records.
type settings struct {
	Policy    string         `json:"policy,omitempty"`
	Options   map[string]any `json:"options,omitempty"` // of the policy
	Config    place.Config   `json:"config"`
	Confine   []string       `json:"confine,omitempty"`
	Protected []string       `json:"protected,omitempty"`
	Affinity  bool           `json:"affinity,omitempty"`
	Rewrites  int            `json:"rewrites,omitempty"`
	Window    time.Duration  `json:"window,omitempty"`
	Agent     bool           `json:"agent,omitempty"` // stored by an agent
}

func (n *Node) settings() settings {
	o := &n.opt
	return settings{
		Policy: o.PolicyName, Options: o.PolicyOptions, Config: o.Config, Confine: o.Confine, Protected: o.Protected,
		Affinity: o.Affinity, Rewrites: o.Rewrites, Window: o.Window, Agent: o.Keep && o.Policies == nil,
	}
}

// storedSettings reads the settings; nil if there are none, or none that still hold.
func (s store) storedSettings() (*settings, error) {
	text, err := readRegular(s.path(settingsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var stored settings
	if err == nil {
		err = unseal(text, &stored)
	}
	if err != nil {
		return nil, fmt.Errorf("settings %s: %w; start berth agent with its configuration, or give everything back with 'berth restore --all'", s.path(settingsFile), err)
	}
	if stored.Agent {
		return &stored, nil
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() == batchFile || strings.HasSuffix(e.Name(), recordExt) {
			return &stored, nil
		}
	}
	return nil, nil
}

// storeSettings keeps the settings that the node is open with for later openers. A
// full disk does not hold up what follows.
func (t *transaction) storeSettings() error {
	own := t.n.settings()
	text, err := seal(own)
	if err != nil {
		return fmt.Errorf("store the settings of the node: %w", err)
	}
	if now, err := readRegular(t.path(settingsFile)); err == nil && bytes.Equal(now, text) {
		return nil
	}
	if stored, err := t.storedSettings(); err == nil && stored != nil && stored.Agent && !own.Agent {
		return nil
	}
	if err = t.write(settingsFile+".new", text); err == nil {
		err = t.rename(settingsFile+".new", settingsFile)
	}
	if errors.Is(err, syscall.ENOSPC) {
		t.n.tell(Failed, "", t.path(settingsFile), "the settings of the node are not stored: "+err.Error())
		return t.remove(settingsFile + ".new")
	}
	if err != nil {
		return fmt.Errorf("store the settings of the node: %w", err)
	}
	return nil
}

// recall has the stored settings stand for what the opener left to them (see
// Options.Policies), and reports whether they are others than before.
func (n *Node) recall() (changed bool, err error) {
	make := n.asked.Policies
	if make == nil {
		return false, nil
	}
	opt := n.asked
	stored, err := store{dir: n.opt.Dir}.storedSettings()
	if err != nil {
		return false, err
	}
	if stored != nil {
		if opt.PolicyName == "" {
			opt.PolicyName, opt.PolicyOptions = stored.Policy, stored.Options
		}
		if opt.Confine == nil {
			opt.Confine = stored.Confine
		}
		opt.Config, opt.Protected, opt.Affinity = stored.Config, stored.Protected, stored.Affinity
		opt.Rewrites, opt.Window = stored.Rewrites, stored.Window
	}
	if opt.Policy, err = make(opt.PolicyName, opt.PolicyOptions); err != nil {
		return false, fmt.Errorf("policy %q: %w", opt.PolicyName, err)
	}
	if n.recalled && reflect.DeepEqual(stored, n.stored) {
		return false, nil
	}
	if err := opt.Validate(); err != nil {
		return false, err
	}
	n.recalled, n.stored, n.opt = true, stored, opt
	n.drift.Rule = desired.Rule{Limit: opt.Rewrites, Window: int64(opt.Window)}
	return true, nil
}
