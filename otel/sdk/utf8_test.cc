#include "otel/sdk/utf8.h"

#include <gtest/gtest.h>

namespace tensorcast::otel::sdk {
namespace {

std::string Valid(std::string_view text) {
  std::string storage;
  return std::string(ValidUtf8(text, storage));
}

TEST(Utf8, CutUtf8_CutsBetweenCharacters) {
  EXPECT_EQ(CutUtf8("abc", 3), "abc");
  EXPECT_EQ(CutUtf8("abcd", 3), "abc");
  EXPECT_EQ(CutUtf8("ab\xc3\xa9", 3), "ab");
  EXPECT_EQ(CutUtf8("\xf0\x9f\x98\x80", 3), "");
}

TEST(Utf8, ValidText_IsNotCopied) {
  std::string storage;
  const std::string_view text = "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80";
  EXPECT_EQ(ValidUtf8(text, storage).data(), text.data());
}

TEST(Utf8, InvalidBytes_AreReplaced) {
  EXPECT_EQ(Valid("a\xff"
                  "b"),
            "a?b");
  EXPECT_EQ(Valid("\xc3"), "?");
  EXPECT_EQ(Valid("\xc0\xaf"), "??") << "overlong";
  EXPECT_EQ(Valid("\xed\xa0\x80"), "???") << "a surrogate";
  EXPECT_EQ(Valid("\xf4\x90\x80\x80"), "????") << "beyond Unicode";
  EXPECT_EQ(Valid("ok\xc3\xa9\x80ok"), "ok\xc3\xa9?ok");
}

}  // namespace
}  // namespace tensorcast::otel::sdk
