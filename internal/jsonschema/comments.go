package jsonschema

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// Comments reads what the Go files of some directories, tests left out, say of
// types and their fields: by "package.Type" and "package.Type.Field".
func Comments(dirs ...string) (map[string]string, error) {
	out := map[string]string{}
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("read comments: no Go files in %s", dir)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				return nil, err
			}
			for _, d := range file.Decls {
				group, ok := d.(*ast.GenDecl)
				if !ok || group.Tok != token.TYPE {
					continue
				}
				for _, s := range group.Specs {
					note(out, file.Name.Name, s.(*ast.TypeSpec), group.Doc)
				}
			}
		}
	}
	return out, nil
}

func note(out map[string]string, pkg string, s *ast.TypeSpec, doc *ast.CommentGroup) {
	if s.Doc != nil {
		doc = s.Doc
	}
	name := pkg + "." + s.Name.Name
	out[name] = oneLine(doc.Text())
	structure, ok := s.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range structure.Fields.List {
		for _, field := range f.Names {
			out[name+"."+field.Name] = oneLine(f.Doc.Text() + " " + f.Comment.Text())
		}
	}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
