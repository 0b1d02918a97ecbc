package agent

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"syscall"

	"berth.dev/berth/desired"
	"berth.dev/berth/kernel"
)

// stored are settings as they are stored.
type stored struct {
	Settings
	Agent bool `json:"agent,omitempty"` // stored by an agent
}

// storedSettings reads the settings among the texts of the state directory; nil without
// any that still hold.
func (s store) storedSettings(texts map[string][]byte) (*stored, error) {
	text, there := texts[settingsFile]
	if !there {
		return nil, nil
	}
	var is stored
	if err := unseal(text, &is); err != nil {
		return nil, fmt.Errorf("settings %s: %w; start berth agent with its configuration, or give everything back with 'berth restore --all'", s.path(settingsFile), err)
	}
	for name := range texts {
		if is.Agent || name == batchFile || strings.HasSuffix(name, recordExt) {
			return &is, nil
		}
	}
	return nil, nil
}

// storeSettings keeps the settings that the node is open with for later openers. A
// full disk does not hold up what follows.
func (t *transaction) storeSettings() error {
	own := stored{t.n.opt.Settings, t.n.opt.Keep && t.n.opt.Policies == nil}
	text, err := seal(own)
	if err != nil {
		return fmt.Errorf("store the settings of the node: %w", err)
	}
	if now, err := kernel.ReadPrivateFile(t.path(settingsFile)); err == nil {
		var is stored
		if bytes.Equal(now, text) || unseal(now, &is) == nil && is.Agent && !own.Agent {
			return nil
		}
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
func (n *Node) recall(texts map[string][]byte) (changed bool, err error) {
	make := n.asked.Policies
	if make == nil {
		return false, nil
	}
	opt := n.asked
	stored, err := store{dir: n.opt.Dir}.storedSettings(texts)
	if err != nil {
		return false, err
	}
	if stored != nil {
		opt.Settings = stored.Settings
		if given := n.asked.Settings; given.PolicyName != "" {
			opt.PolicyName, opt.PolicyOptions = given.PolicyName, given.PolicyOptions
		}
		if n.asked.Classes != (ClassConfig{}) {
			opt.Classes = n.asked.Classes
		}
		if n.asked.Confine != nil {
			opt.Confine = n.asked.Confine
		}
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
