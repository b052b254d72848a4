// Labels describe a node, such as zone=a or rack=r3. Names and values have 1 to 63 letters, digits, '-', '_'
// and '.' (names also '/') and begin and end with a letter or a digit. A node has at most 16 labels.
//
// Plain values. Errors: INVALID_ARGUMENT, which names the label and says what is expected.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast {

using Labels = std::map<std::string, std::string>;

// Checks the labels against the rules above.
absl::Status CheckLabels(const Labels& labels);

// Parses texts of the form "name=value". A name that occurs twice is an error.
absl::StatusOr<Labels> ParseLabels(const std::vector<std::string>& pairs);

// Whether `labels` contains each label of `wanted` with the same value.
bool HasLabels(const Labels& labels, const Labels& wanted);

// "rack=r3, zone=a"
std::string LabelsText(const Labels& labels);

}  // namespace tensorcast
