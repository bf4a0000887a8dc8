package kernel

// AboutLinks reports whether interfaces or their addresses may have changed.
func (e Event) AboutLinks() bool { return e.Type != EventRoute && e.Type != EventRouteGone }
