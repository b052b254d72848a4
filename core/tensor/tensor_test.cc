#include "core/tensor/tensor.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;

// Written out once more here on purpose: the values are part of the manifest's format, the names of
// safetensors'.
TEST(DType, DtypeValuesNamesAndBits_AreStable) {
  const struct {
    int value;
    const char* name;
    uint32_t bits;
  } expected[] = {
      {1, "BOOL", 8},         {2, "F4", 4},           {3, "F6_E2M3", 6}, {4, "F6_E3M2", 6}, {5, "U8", 8},
      {6, "I8", 8},           {7, "F8_E5M2", 8},      {8, "F8_E4M3", 8}, {9, "F8_E8M0", 8}, {10, "I16", 16},
      {11, "U16", 16},        {12, "F16", 16},        {13, "BF16", 16},  {14, "I32", 32},   {15, "U32", 32},
      {16, "F32", 32},        {17, "C64", 64},        {18, "F64", 64},   {19, "I64", 64},   {20, "U64", 64},
      {21, "F8_E4M3FNUZ", 8}, {22, "F8_E5M2FNUZ", 8},
  };
  ASSERT_EQ(AllDTypes().size(), std::size(expected));
  for (size_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ(static_cast<int>(AllDTypes()[i].dtype), expected[i].value);
    EXPECT_EQ(AllDTypes()[i].name, expected[i].name);
    EXPECT_EQ(AllDTypes()[i].bits, expected[i].bits) << expected[i].name;
  }
}

TEST(DType, FindDtype_FindsByValueAndByName) {
  for (const DTypeInfo& info : AllDTypes()) {
    EXPECT_EQ(FindDType(info.dtype), &info);
    EXPECT_EQ(FindDType(info.name), &info);
    EXPECT_EQ(DTypeName(info.dtype), info.name);
  }
}

TEST(DType, FindDtype_ReturnsNullForUnknownValuesAndNames) {
  EXPECT_EQ(FindDType(static_cast<DType>(0)), nullptr);
  EXPECT_EQ(FindDType(static_cast<DType>(23)), nullptr);
  EXPECT_EQ(FindDType(static_cast<DType>(255)), nullptr);
  EXPECT_EQ(FindDType(""), nullptr);
  EXPECT_EQ(FindDType("bf16"), nullptr);
  EXPECT_EQ(FindDType("F32 "), nullptr);
}

TEST(TensorBytes, TensorBytes_MultipliesShapeAndElementSize) {
  EXPECT_EQ(*TensorBytes(DType::kF32, {2, 3}), 24u);
  EXPECT_EQ(*TensorBytes(DType::kBF16, {7}), 14u);
  EXPECT_EQ(*TensorBytes(DType::kC64, {1, 1, 1}), 8u);
  EXPECT_EQ(*TensorBytes(DType::kBool, {5}), 5u);
}

TEST(TensorBytes, TensorBytesOfScalar_CountsOneElement) { EXPECT_EQ(*TensorBytes(DType::kI64, {}), 8u); }

TEST(TensorBytes, ZeroDimension_GivesZeroBytesBesideHugeDimensions) {
  EXPECT_EQ(*TensorBytes(DType::kF32, {0}), 0u);
  EXPECT_EQ(*TensorBytes(DType::kF32, {UINT64_MAX, UINT64_MAX, 0}), 0u);
  EXPECT_EQ(*TensorBytes(DType::kF4, {0, 3}), 0u);
}

TEST(TensorBytes, PackedDtypes_MustFillWholeBytes) {
  EXPECT_EQ(*TensorBytes(DType::kF4, {2}), 1u);
  EXPECT_EQ(*TensorBytes(DType::kF6E2M3, {4}), 3u);
  EXPECT_EQ(*TensorBytes(DType::kF6E3M2, {2, 2}), 3u);
  for (const auto& [dtype, count] : {std::pair{DType::kF4, 3u}, {DType::kF6E2M3, 2u}, {DType::kF6E3M2, 5u}}) {
    const auto bytes = TensorBytes(dtype, {count});
    ASSERT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(bytes.status().message(), HasSubstr("whole bytes"));
  }
  EXPECT_FALSE(TensorBytes(DType::kF4, {}).ok());  // a scalar of four bits
}

TEST(TensorBytes, TensorBytes_IsExactUpTo64BitsAndFailsBeyond) {
  EXPECT_EQ(*TensorBytes(DType::kU8, {UINT64_MAX}), UINT64_MAX);
  EXPECT_EQ(*TensorBytes(DType::kF64, {uint64_t{1} << 60}), uint64_t{1} << 63);
  EXPECT_EQ(*TensorBytes(DType::kF4, {uint64_t{1} << 63}), uint64_t{1} << 62);
  EXPECT_FALSE(TensorBytes(DType::kF16, {uint64_t{1} << 63}).ok());
  EXPECT_FALSE(TensorBytes(DType::kU8, {uint64_t{1} << 32, uint64_t{1} << 32}).ok());
  EXPECT_FALSE(TensorBytes(DType::kF4, {uint64_t{1} << 32, uint64_t{1} << 33}).ok());
  EXPECT_FALSE(TensorBytes(DType::kU8, std::vector<uint64_t>(1000, 2)).ok());
}

TEST(TensorBytes, TensorBytes_RejectsUnknownDtype) {
  EXPECT_EQ(TensorBytes(static_cast<DType>(0), {1}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tensorcast
