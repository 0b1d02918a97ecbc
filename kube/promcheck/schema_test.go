package promcheck

import (
	"errors"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// strict reads a dashboard by Grafana's own schema: no field that it does not have, none missing
// that it requires, and each panel and query by the schema of its plugin.
func strict(text []byte) (d dashboard.Dashboard, _ error) {
	plugins.RegisterDefaultPlugins()
	for _, check := range []func() error{func() error { return d.UnmarshalJSONStrict(text) }, func() error { return d.Validate() }} {
		var all cog.BuildErrors
		if err := check(); err != nil && (!errors.As(err, &all) || len(all) > 0) { // it may be an error of no errors
			return d, err
		}
	}
	return d, nil
}

func TestDashboardSchema(t *testing.T) {
	d, err := strict(read(t, dashboardFile))
	if err != nil {
		t.Fatal(err)
	}
	if d.SchemaVersion < 36 || d.Uid == nil || *d.Uid == "" || d.Title == nil || *d.Title == "" {
		t.Errorf("version %d of the schema, uid %v, title %v", d.SchemaVersion, d.Uid, d.Title)
	}
}
