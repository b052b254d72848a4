// Pages of a list in a document, with a max number of rows and bytes. Pure functions.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/dashboard/http_request.h"

namespace tensorcast::dashboard {

inline constexpr size_t kDefaultPageRows = 200;
inline constexpr size_t kMaxPageRows = 1000;
inline constexpr size_t kMaxPageBytes = 1 << 20;  // of the rows of one list

// The value of a parameter; empty if it is missing.
std::string ParameterOf(const Query& query, std::string_view name);

// Adds a page of a list to (*document)[list]. The list has `count` rows, sorted by `key`. The page begins
// after the query's page_token, the key of a row. The page has at most page_size rows and kMaxPageBytes
// bytes; a page with one row may be longer. Sets `total`, and `next_page_token` if more rows follow.
// INVALID_ARGUMENT if page_size is out of bounds.
absl::Status AddPage(const Query& query, const char* list, size_t count,
                     absl::FunctionRef<std::string(size_t)> key,
                     absl::FunctionRef<nlohmann::json(size_t)> row, nlohmann::json* document);

}  // namespace tensorcast::dashboard
