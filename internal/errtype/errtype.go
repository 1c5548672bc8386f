// Package errtype has programs find errors of internal packages as types that they can import.
package errtype

import (
	"reflect"
	"strings"
)

// As is the method As of an error of type E, which is internal: errors.As finds e as the type of the same name
// and fields in the package at the root of the module, which cannot be imported from here.
func As[E any](e *E, target any) bool {
	own, asked := reflect.TypeFor[E](), reflect.TypeOf(target).Elem()
	root, _, _ := strings.Cut(own.PkgPath(), "/internal/")
	if asked.Kind() != reflect.Pointer || asked.Elem().PkgPath() != root || asked.Elem().Name() != own.Name() {
		return false
	}
	reflect.ValueOf(target).Elem().Set(reflect.ValueOf(e).Convert(asked))
	return true
}
