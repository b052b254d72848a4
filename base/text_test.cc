#include "base/text.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace tensorcast::text_test {
namespace {

TEST(Utf8, ValidUtf8OfEveryLength_IsAccepted) {
  for (const std::string_view text :
       {"", "plain", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
        "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(IsValidUtf8(text)) << ::testing::PrintToString(std::string(text));
  }
  EXPECT_TRUE(IsValidUtf8(std::string_view("a\0b", 3)));
}

TEST(Utf8, InvalidUtf8_IsRejected) {
  for (const std::string_view text :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2\x41", "\xE0\x9F\xBF", "\xE1\x80",
        "\xE1\x80\x41", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF1\x80\x80", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\xFE", "\xFF"}) {
    EXPECT_FALSE(IsValidUtf8(text)) << ::testing::PrintToString(std::string(text));
    EXPECT_FALSE(IsValidUtf8("before" + std::string(text))) << ::testing::PrintToString(std::string(text));
  }
}

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

TEST(QuoteName, QuoteName_EscapesAndCutsBetweenCharacters) {
  EXPECT_EQ(QuoteName("layers.0"), "\"layers.0\"");
  EXPECT_EQ(QuoteName("a\nb"), "\"a\\nb\"");
  EXPECT_EQ(QuoteName("a\xFF"), "\"a\\xff\"");
  EXPECT_EQ(QuoteName("\xC3\xA9"), "\"\xC3\xA9\"");
  std::string long_name(199, 'x');
  EXPECT_EQ(QuoteName(long_name + "\xC3\xA9"), "\"" + long_name + "...\"");
  EXPECT_EQ(QuoteName(long_name + "y"), "\"" + long_name + "y\"");
}

TEST(Printable, Printable_EscapesControlCharacters) {
  EXPECT_EQ(Printable("node-a \xC3\xA9"), "node-a \xC3\xA9");
  EXPECT_EQ(Printable("\x1B[2Ja\r\nb\x7F"), "\\x1b[2Ja\\x0d\\x0ab\\x7f");
  EXPECT_EQ(Printable("a\nb", /*keep_lines=*/true), "a\nb");
  EXPECT_EQ(Printable("\xC2\x9B"
                      "31m"),
            "\\xc2\\x9b31m")
      << "CSI as one character";
  EXPECT_EQ(Printable("a\xFF"), "a\\xff");
  EXPECT_EQ(Printable(Printable("\x1B]0;x\x07")), Printable("\x1B]0;x\x07"));
}

TEST(Printable, IsPrintable_RefusesControlCharacters) {
  EXPECT_TRUE(IsPrintable(""));
  EXPECT_TRUE(IsPrintable("10.0.0.1:7000 \xC2\xA0\xE2\x82\xAC"));
  for (const std::string_view text : {"\x1B[2J", "a\tb", "a\n", "\x7F", "\xC2\x80", "\xC2\x9F", "\xFF"}) {
    EXPECT_FALSE(IsPrintable(text)) << ::testing::PrintToString(std::string(text));
  }
}

}  // namespace
}  // namespace tensorcast::text_test
