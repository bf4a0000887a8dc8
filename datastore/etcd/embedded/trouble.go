package embedded

import (
	"fmt"

	"go.uber.org/zap"
)

// transitions logs a problem when it starts and when it ends, not each time it is seen.
type transitions struct {
	log *zap.Logger
	now map[string]string
}

func (t *transitions) report(what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	was := t.now[what]
	if t.now == nil {
		t.now = map[string]string{}
	}
	t.now[what] = text
	switch {
	case (was == "") == (text == ""):
	case text != "":
		t.log.Warn("embedded datastore: "+what, zap.Error(err))
	default:
		t.log.Info("embedded datastore: " + what + ": fine again")
	}
}

// fullError reports that the current data alone reaches the quota.
type fullError struct{ inUse, quota int64 }

func (e fullError) Error() string {
	return fmt.Sprintf("the quota is reached, nothing can be written until something is deleted: %d of %d "+
		"MiB are in use", e.inUse>>20, e.quota>>20)
}
