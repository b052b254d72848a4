#include "transport/byte_codec.h"

#include <gtest/gtest.h>

namespace tensorcast::transport {
namespace {

TEST(ByteCodec, IntegersAreLittleEndian) {
  EXPECT_EQ(ByteWriter().Put(uint8_t{1}).Put(uint16_t{0x0203}).Put(uint32_t{0x04050607}).Take(),
            std::string("\x01\x03\x02\x07\x06\x05\x04", 7));
}

TEST(ByteCodec, WhatWasWrittenIsRead) {
  const std::string bytes = ByteWriter().Put(~uint64_t{0}).Put("abc").Put(uint16_t{7}).Take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.Get<uint64_t>(), ~uint64_t{0});
  EXPECT_EQ(reader.GetBytes(3), "abc");
  EXPECT_FALSE(reader.AtEnd());
  EXPECT_EQ(reader.Get<uint16_t>(), 7);
  EXPECT_TRUE(reader.AtEnd());
}

TEST(ByteCodec, AReadPastTheEndFailsAndStaysFailed) {
  ByteReader reader("abc");
  EXPECT_EQ(reader.Get<uint32_t>(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.Get<uint8_t>(), 0);
  EXPECT_FALSE(reader.AtEnd());
}

}  // namespace
}  // namespace tensorcast::transport
