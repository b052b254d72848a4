// Labels: what a node says of itself, by name, such as zone=a or rack=r3, so that people and policies can
// speak of many nodes at once. Names and values are 1 to 63 letters, digits, '-', '_' and '.' (names '/',
// too) that begin and end with a letter or a digit; a node has at most 16.
//
// Plain values. Errors: INVALID_ARGUMENT, saying which label and what is expected.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast {

using Labels = std::map<std::string, std::string>;

// Whether they keep to the rules, wherever they come from.
absl::Status CheckLabels(const Labels& labels);

// Of texts "name=value". A name that stands twice is an error.
absl::StatusOr<Labels> ParseLabels(const std::vector<std::string>& pairs);

// Whether `labels` has each of `wanted`, with the same value.
bool HasLabels(const Labels& labels, const Labels& wanted);

// "rack=r3, zone=a"
std::string LabelsText(const Labels& labels);

}  // namespace tensorcast
