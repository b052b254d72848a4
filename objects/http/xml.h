// Parses the XML of S3 and STS replies, with expat: elements and text of a whole document in memory.
// Attributes, comments and namespace prefixes are dropped. A document type declaration is refused, so no
// entity can expand. A pure function; thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast::objects {

struct XmlElement {
  std::string name;
  std::string text;  // without the text of its children
  std::vector<XmlElement> children;

  // The text of the first child of that name; empty: there is no such child.
  std::string_view TextOf(std::string_view child) const;
};

// Returns the root element. INVALID_ARGUMENT for a document that is not well-formed, has more than 1 GiB, or
// is nested more than 16 levels deep.
absl::StatusOr<XmlElement> ParseXml(std::string_view document);

}  // namespace tensorcast::objects
