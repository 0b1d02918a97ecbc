package guard

import (
	"context"
	"fmt"

	"berth.dev/berth/guard/actuate"
	"berth.dev/berth/guard/control"
	"berth.dev/berth/guard/detect"
)

// paper is the Actuator of a recording: it says what would be done, and that nothing
// is known of how groups were set.
type paper struct{}

func (paper) Preview(_ context.Context, a control.Action) ([]control.Change, error) {
	return []control.Change{{Path: fmt.Sprintf("%v of %s", a.Remedy, a.Group), To: a.String()}}, nil
}

func (p paper) Apply(context.Context, control.Action) ([]control.Change, error) {
	return nil, fmt.Errorf("apply to a recording")
}

func (p paper) Revert(context.Context, control.Action) ([]control.Change, error) { return nil, nil }

func (paper) Settings(string) (actuate.Settings, error) { return actuate.Settings{}, nil }

func (paper) Unavailable() map[detect.Remedy]string { return nil }

func (paper) NoIdle() string { return "" }
