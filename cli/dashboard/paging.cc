#include "cli/dashboard/paging.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tensorcast::dashboard {

std::string ParameterOf(const Query& query, std::string_view name) {
  const auto found = query.find(std::string(name));
  return found == query.end() ? "" : found->second;
}

absl::Status AddPage(const Query& query, const char* list, size_t count,
                     absl::FunctionRef<std::string(size_t)> key,
                     absl::FunctionRef<nlohmann::json(size_t)> row, nlohmann::json* document) {
  size_t size = kDefaultPageRows;
  if (const std::string text = ParameterOf(query, "page_size"); !text.empty()) {
    if (!absl::SimpleAtoi(text, &size) || size == 0 || size > kMaxPageRows) {
      return absl::InvalidArgumentError(
          absl::StrCat("list ", list, ": page_size is ", text, "; give 1 to ", kMaxPageRows));
    }
  }
  const std::string after = ParameterOf(query, "page_token");
  nlohmann::json rows = nlohmann::json::array();
  size_t bytes = 0;
  size_t i = 0;
  // A page begins behind the key of the last row, not behind a number of rows: rows may have come or gone
  // before it.
  while (i < count && !after.empty() && key(i) <= after) ++i;
  for (; i < count && rows.size() < size; ++i) {
    nlohmann::json made = row(i);
    bytes += made.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).size();
    // A page has one row at least, so that each page makes progress.
    if (bytes > kMaxPageBytes && !rows.empty()) break;
    rows.push_back(std::move(made));
  }
  (*document)[list] = std::move(rows);
  (*document)["total"] = count;
  if (i < count && i > 0) (*document)["next_page_token"] = key(i - 1);
  return absl::OkStatus();
}

}  // namespace tensorcast::dashboard
