// Package model defines the objects of the Calico v3 data model: their kinds, keys, encoding, defaults and validation.
package model
