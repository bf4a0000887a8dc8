package model

import (
	"time"
)

// PrepareCreate makes o ready to be stored as a new object: identity, defaults, then validation. It changes o.Value,
// and o.Key when the name follows from the value. An invalid object gives an *InvalidError.
func (o *Object) PrepareCreate(now time.Time) error { return nil }

// PrepareUpdate makes o ready to replace a stored object: defaults, then validation. It changes o.Value.
// An invalid object gives an *InvalidError.
func (o *Object) PrepareUpdate() error { return nil }

// Replaces declares that o is to be stored in the place of stored: what stored has and o cannot know (fields of newer
// versions, uid, creation time) is kept by Encode.
func (o *Object) Replaces(stored *Object) {}
