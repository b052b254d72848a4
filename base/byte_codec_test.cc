#include "base/byte_codec.h"

#include <gtest/gtest.h>

namespace tensorcast::byte_codec_test {
namespace {

TEST(ByteCodec, ByteWriter_WritesLittleEndianByDefault) {
  EXPECT_EQ(ByteWriter().Put(uint8_t{1}).Put(uint16_t{0x0203}).Put(uint32_t{0x04050607}).Take(),
            std::string("\x01\x03\x02\x07\x06\x05\x04", 7));
}

TEST(ByteCodec, BigEndian_IsWrittenAndReadOnRequest) {
  const std::string bytes = ByteWriter(ByteOrder::kBigEndian)
                                .Put(uint16_t{0x0203})
                                .Put(uint64_t{1})
                                .PutString<uint16_t>("ab")
                                .Take();
  EXPECT_EQ(bytes, std::string("\x02\x03\0\0\0\0\0\0\0\x01\0\x02"
                               "ab",
                               14));
  ByteReader reader(bytes, ByteOrder::kBigEndian);
  EXPECT_EQ(reader.Get<uint16_t>(), 0x0203);
  EXPECT_EQ(reader.Get<uint64_t>(), 1u);
  EXPECT_EQ(reader.GetString<uint16_t>(), "ab");
  EXPECT_TRUE(reader.AtEnd());
}

TEST(ByteCodec, WrittenValues_AreReadBack) {
  const std::string bytes = ByteWriter().Put(~uint64_t{0}).Put("abc").Put(uint16_t{7}).Take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.Get<uint64_t>(), ~uint64_t{0});
  EXPECT_EQ(reader.GetBytes(3), "abc");
  EXPECT_FALSE(reader.AtEnd());
  EXPECT_EQ(reader.Get<uint16_t>(), 7);
  EXPECT_TRUE(reader.AtEnd());
}

TEST(ByteCodec, ReadPastEnd_FailsAndStaysFailed) {
  ByteReader reader("abc");
  EXPECT_EQ(reader.Get<uint32_t>(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.Get<uint8_t>(), 0);
  EXPECT_FALSE(reader.AtEnd());
}

TEST(ByteCodec, StringWithTooLargeLength_IsNotRead) {
  ByteReader reader(std::string_view("\x05\0ab", 4));
  EXPECT_EQ(reader.GetString<uint16_t>(), "");
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.position(), 2u);
  EXPECT_EQ(reader.remaining(), 0u);
}

TEST(ByteCodec, SeveralFailures_FirstIsReported) {
  ByteReader reader("abc");
  reader.GetBytes(2);
  reader.Fail("an unknown kind");
  EXPECT_EQ(reader.Get<uint32_t>(), 0u);
  reader.Fail("another thing");
  EXPECT_STREQ(reader.failure(), "an unknown kind");
  EXPECT_EQ(reader.position(), 2u);
}

TEST(ByteCodec, StringTooLongForItsLengthField_IsRefused) {
  ByteWriter writer;
  writer.PutString<uint8_t>(std::string(255, 'x'));
  EXPECT_TRUE(writer.ok());
  EXPECT_EQ(writer.size(), 256u);
  writer.PutString<uint8_t>(std::string(256, 'x'));
  EXPECT_FALSE(writer.ok());
  EXPECT_EQ(writer.size(), 256u);
}

TEST(ByteCodec, Overwrite_ReplacesEarlierBytes) {
  ByteWriter writer;
  writer.Put(uint32_t{0}).Put("abc");
  writer.Overwrite(0, static_cast<uint32_t>(writer.size() - 4));
  EXPECT_EQ(writer.Take(), std::string("\x03\0\0\0abc", 7));
}

}  // namespace
}  // namespace tensorcast::byte_codec_test
