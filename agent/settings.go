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

	"berth.dev/berth/desired"
)

// stored are settings as they are stored.
type stored struct {
	Settings
	Agent bool `json:"agent,omitempty"` // stored by an agent
}

// storedSettings reads the settings; nil without any that still hold.
func (s store) storedSettings() (*stored, error) {
	text, err := readRegular(s.path(settingsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var is stored
	if err == nil {
		err = unseal(text, &is)
	}
	if err != nil {
		return nil, fmt.Errorf("settings %s: %w; start berth agent with its configuration, or give everything back with 'berth restore --all'", s.path(settingsFile), err)
	}
	if is.Agent {
		return &is, nil
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name() == batchFile || strings.HasSuffix(e.Name(), recordExt) {
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
		opt.Settings = stored.Settings
		if given := n.asked.Settings; given.PolicyName != "" {
			opt.PolicyName, opt.PolicyOptions = given.PolicyName, given.PolicyOptions
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
