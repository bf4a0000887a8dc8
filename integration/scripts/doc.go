// Package scripts runs scenarios that are written as txtar files: objects go in, commands run on the hosts of a lab,
// and the state of a whole host comes out as text.
package scripts
