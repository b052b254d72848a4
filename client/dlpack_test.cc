#include "client/dlpack.h"

#include <gtest/gtest.h>

#include <optional>

namespace tensorcast::client::dlpack_test {
namespace {

TEST(DTypeOfDlpack, CodeWithBits_IsOneElementType) {
  EXPECT_EQ(DTypeOfDlpack(1, 8), DType::kU8);
  EXPECT_EQ(DTypeOfDlpack(2, 64), DType::kF64);
  EXPECT_EQ(DTypeOfDlpack(4, 16), DType::kBF16);
  EXPECT_EQ(DTypeOfDlpack(6, 8), DType::kBool);
  EXPECT_EQ(DTypeOfDlpack(10, 8), DType::kF8E4M3);
  EXPECT_EQ(DTypeOfDlpack(17, 4), DType::kF4);
}

TEST(DTypeOfDlpack, TypeWithoutSafetensorsName_IsNone) {
  EXPECT_EQ(DTypeOfDlpack(2, 128), std::nullopt);
  EXPECT_EQ(DTypeOfDlpack(5, 128), std::nullopt);
  EXPECT_EQ(DTypeOfDlpack(3, 64), std::nullopt);
}

}  // namespace
}  // namespace tensorcast::client::dlpack_test
