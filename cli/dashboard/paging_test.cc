#include "cli/dashboard/paging.h"

#include <gmock/gmock.h>

#include <vector>

#include "absl/strings/str_cat.h"

namespace tensorcast::dashboard::paging_test {
namespace {

// Rows with these keys, each with a text of so many bytes.
nlohmann::json PageOf(const std::vector<std::string>& keys, const Query& query, size_t bytes = 1) {
  nlohmann::json document = nlohmann::json::object();
  const absl::Status status = AddPage(
      query, "rows", keys.size(), [&](size_t i) { return keys[i]; },
      [&](size_t i) -> nlohmann::json { return {{"key", keys[i]}, {"text", std::string(bytes, 'x')}}; },
      &document);
  EXPECT_TRUE(status.ok()) << status;
  return document;
}

TEST(Paging, Pages_HaveEachRowOnce) {
  const std::vector<std::string> keys = {"a", "b", "c", "d", "e"};
  std::vector<std::string> seen;
  Query query = {{"page_size", "2"}};
  for (int pages = 1;; ++pages) {
    ASSERT_LE(pages, 3);
    const nlohmann::json page = PageOf(keys, query);
    EXPECT_EQ(page["total"], 5);
    for (const nlohmann::json& row : page["rows"]) seen.push_back(row["key"]);
    if (!page.contains("next_page_token")) break;
    query["page_token"] = page["next_page_token"];
  }
  EXPECT_EQ(seen, keys);
}

TEST(Paging, TokenOfARowThatWent_GoesOnBehindIt) {
  const nlohmann::json page = PageOf({"a", "c"}, {{"page_token", "b"}});
  ASSERT_EQ(page["rows"].size(), 1u);
  EXPECT_EQ(page["rows"][0]["key"], "c");
}

TEST(Paging, LargeRows_EndThePageEarly) {
  const std::vector<std::string> keys = {"a", "b", "c"};
  const nlohmann::json page = PageOf(keys, {}, kMaxPageBytes / 2);
  EXPECT_EQ(page["rows"].size(), 1u);
  EXPECT_EQ(page["next_page_token"], "a");
  EXPECT_EQ(PageOf(keys, {}, 2 * kMaxPageBytes)["rows"].size(), 1u)
      << "one row at least, so that pages go on";
}

TEST(Paging, PageSizeOutOfBounds_IsRefused) {
  nlohmann::json document;
  for (const char* size : {"0", "1001", "-1", "x", "1e3"}) {
    const absl::Status status = AddPage(
        {{"page_size", size}}, "rows", 0, [](size_t) { return ""; }, [](size_t) { return nlohmann::json(); },
        &document);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
  }
}

}  // namespace
}  // namespace tensorcast::dashboard::paging_test
