// The header's rules, one by one; index files too, which share the JSON reader.
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/safetensors/index.h"
#include "core/safetensors/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::header_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// JSON with ' for ", to be readable.
std::string Json(std::string_view text) { return absl::StrReplaceAll(text, {{"'", "\""}}); }

void ExpectRejected(std::string_view header, uint64_t data_bytes, std::string_view reason) {
  const auto parsed = ParseSafetensorsHeader(Json(header), data_bytes);
  ASSERT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << header;
  EXPECT_THAT(parsed.status().message(), HasSubstr(reason)) << header;
}

// One F32 tensor of two elements, with `fields` as its JSON object's inside.
void ExpectTensorRejected(std::string_view fields, std::string_view reason) {
  ExpectRejected(absl::StrCat("{'w':{", fields, "}}"), 8, reason);
}

TEST(SafetensorsHeader, SafetensorsHeader_ListsTensorsInDataOrder) {
  const std::string header = Json(
      "{'b':{'dtype':'F32','shape':[2],'data_offsets':[6,14]},"
      "'__metadata__':{'format':'pt','note':''},"
      "'a':{'data_offsets':[0,6],'shape':[3,1],'dtype':'BF16'}}  ");
  const auto parsed = ParseSafetensorsHeader(header, 14);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->tensors.size(), 2u);
  EXPECT_EQ(parsed->tensors[0].name, "a");
  EXPECT_EQ(parsed->tensors[0].dtype, DType::kBF16);
  EXPECT_THAT(parsed->tensors[0].shape, ElementsAre(3, 1));
  EXPECT_EQ(parsed->tensors[0].data, (ByteRange{0, 6}));
  EXPECT_EQ(parsed->tensors[1].name, "b");
  EXPECT_EQ(parsed->tensors[1].data, (ByteRange{6, 8}));
  EXPECT_THAT(parsed->metadata, ElementsAre(Pair("format", "pt"), Pair("note", "")));
  EXPECT_EQ(parsed->data_offset, 8 + header.size());
  EXPECT_EQ(parsed->data_bytes, 14u);
}

TEST(SafetensorsHeader, SafetensorsHeader_AcceptsEveryDtype) {
  for (const DTypeInfo& info : AllDTypes()) {
    const auto parsed =
        ParseSafetensorsHeader(Json(absl::StrCat("{'w':{'dtype':'", info.name,
                                                 "','shape':[8],'data_offsets':[0,", info.bits, "]}}")),
                               info.bits);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->tensors[0].dtype, info.dtype);
  }
}

TEST(SafetensorsHeader, ScalarsAndEmptyTensors_AreAcceptedAndSortedByName) {
  const auto parsed = ParseSafetensorsHeader(Json("{'z':{'dtype':'F32','shape':[0,5],'data_offsets':[0,0]},"
                                                  "'s':{'dtype':'U8','shape':[],'data_offsets':[0,1]},"
                                                  "'e':{'dtype':'F32','shape':[0],'data_offsets':[0,0]},"
                                                  "'t':{'dtype':'F32','shape':[0],'data_offsets':[1,1]}}"),
                                             1);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->tensors.size(), 4u);
  EXPECT_EQ(parsed->tensors[0].name, "e");
  EXPECT_EQ(parsed->tensors[1].name, "z");
  EXPECT_EQ(parsed->tensors[2].name, "s");
  EXPECT_EQ(parsed->tensors[3].name, "t");
}

TEST(SafetensorsHeader, SafetensorsHeaderWithoutTensors_IsAccepted) {
  for (const char* header : {"{}", "{}      ", "{'__metadata__':{}}"}) {
    const auto parsed = ParseSafetensorsHeader(Json(header), 0);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_TRUE(parsed->tensors.empty());
  }
  ExpectRejected("{}", 1, "other bytes follow the tensors");
}

TEST(SafetensorsHeader, DimensionsThatOverflowBeforeZero_AreRefused) {
  constexpr char kLarge[] = "9223372036854775808";  // 2^63
  ExpectRejected(
      absl::StrCat("{'w':{'dtype':'U8','shape':[", kLarge, ",", kLarge, ",0],'data_offsets':[0,0]}}"), 0,
      "does not fit in 64 bits");
  EXPECT_TRUE(ParseSafetensorsHeader(Json(absl::StrCat("{'w':{'dtype':'U8','shape':[0,", kLarge, ",", kLarge,
                                                       "],'data_offsets':[0,0]}}")),
                                     0)
                  .ok());
}

TEST(SafetensorsHeader, TensorName_MayHoldAnyUnicodeCharacter) {
  const auto parsed = ParseSafetensorsHeader(
      "{\"\\u00e9\\ud83d\\ude00/\xE2\x82\xAC\\n\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
      1);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->tensors[0].name, "\xC3\xA9\xF0\x9F\x98\x80/\xE2\x82\xAC\n");
}

TEST(SafetensorsHeader, SafetensorsHeader_MustBeOneJsonObject) {
  ExpectRejected("", 0, "does not begin with '{'");
  ExpectRejected(" {}", 0, "does not begin with '{'");
  ExpectRejected("[]", 0, "does not begin with '{'");
  ExpectRejected("\xEF\xBB\xBF{}", 0, "does not begin with '{'");
  ExpectRejected("{", 0, "the JSON text is malformed");
  ExpectRejected("{}}", 0, "the JSON text is malformed at byte");
  ExpectRejected("{}{}", 0, "the JSON text is malformed");
  ExpectRejected("{'a'}", 0, "the JSON text is malformed");
  ExpectRejected("{} // comment", 0, "the JSON text is malformed");
  ExpectRejected("{'w':{'dtype':'F32','shape':[2],'data_offsets':[0,8],}}", 8, "the JSON text is malformed");
  ExpectRejected(std::string("{}\0", 3), 0, "NUL");
  ExpectRejected(std::string("{}\0{'", 6), 0, "NUL");
}

TEST(SafetensorsHeader, SafetensorsHeader_MustBeValidUtf8) {
  ExpectRejected("{'\xFF':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1, "the JSON text is malformed");
  ExpectRejected("{'\xED\xA0\x80':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1,
                 "the JSON text is malformed");
  ExpectRejected("{'\\ud800':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1,
                 "the JSON text is malformed");
}

TEST(SafetensorsHeader, RepeatedKey_IsRefusedAtEveryLevel) {
  const std::string tensor = "'w':{'dtype':'F32','shape':[0],'data_offsets':[0,0]}";
  ExpectRejected(absl::StrCat("{", tensor, ",", tensor, "}"), 0, "tensor \"w\": this key appears twice");
  ExpectRejected(absl::StrCat("{", tensor, ",'\\u0077':{}}"), 0, "appears twice");
  ExpectRejected("{'__metadata__':{},'__metadata__':{}}", 0, "__metadata__: this key appears twice");
  ExpectRejected("{'__metadata__':{'k':'1','k':'1'}}", 0, "__metadata__: key \"k\" appears twice");
  ExpectTensorRejected("'dtype':'F32','dtype':'F32','shape':[2],'data_offsets':[0,8]", "dtype appears twice");
  ExpectTensorRejected("'dtype':'F32','shape':[2],'shape':[2],'data_offsets':[0,8]", "shape appears twice");
  ExpectTensorRejected("'dtype':'F32','shape':[2],'data_offsets':[0,8],'data_offsets':[0,8]",
                       "data_offsets appears twice");
}

TEST(SafetensorsHeader, TensorEntry_NeedsExactlyItsThreeFields) {
  ExpectTensorRejected("", "dtype, shape or data_offsets is missing");
  ExpectTensorRejected("'shape':[2],'data_offsets':[0,8]", "dtype, shape or data_offsets is missing");
  ExpectTensorRejected("'dtype':'F32','data_offsets':[0,8]", "dtype, shape or data_offsets is missing");
  ExpectTensorRejected("'dtype':'F32','shape':[2]", "dtype, shape or data_offsets is missing");
  ExpectTensorRejected("'dtype':'F32','shape':[2],'data_offsets':[0,8],'strides':[1]",
                       "the field \"strides\" is unknown");
}

TEST(SafetensorsHeader, ValueOfWrongType_IsRefused) {
  const auto in = [](std::string_view place, std::string_view type) {
    return absl::StrCat(place, ": ", type, " is not allowed here");
  };
  const std::string_view w = "tensor \"w\"";
  const std::string_view metadata = "__metadata__";
  for (const auto& [value, type] :
       {std::pair("null", "null"), std::pair("true", "a boolean"), std::pair("1", "a number"),
        std::pair("'text'", "a string"), std::pair("[]", "an array")}) {
    ExpectRejected(absl::StrCat("{'w':", value, "}"), 0, in(w, type));
    ExpectRejected(absl::StrCat("{'__metadata__':", value, "}"), 0, in(metadata, type));
  }
  for (const auto& [value, type] :
       {std::pair("null", "null"), std::pair("true", "a boolean"), std::pair("1", "a number"),
        std::pair("1.5", "a number that is not a 64-bit unsigned integer"), std::pair("{}", "an object"),
        std::pair("[]", "an array")}) {
    ExpectRejected(absl::StrCat("{'__metadata__':{'k':", value, "}}"), 0, in(metadata, type));
    ExpectTensorRejected(absl::StrCat("'dtype':", value), in(w, type));
  }
  for (const auto& [value, type] :
       {std::pair("null", "null"), std::pair("true", "a boolean"), std::pair("1", "a number"),
        std::pair("'2'", "a string"), std::pair("{}", "an object")}) {
    ExpectTensorRejected(absl::StrCat("'shape':", value), in(w, type));
    ExpectTensorRejected(absl::StrCat("'data_offsets':", value), in(w, type));
  }
}

TEST(SafetensorsHeader, Number_MustBe64BitUnsignedInteger) {
  for (const char* number :
       {"-1", "-0", "2.0", "2e0", "1e400", "18446744073709551616", "null", "'2'", "[2]", "{}", "true"}) {
    ExpectTensorRejected(absl::StrCat("'dtype':'F32','shape':[", number, "],'data_offsets':[0,8]"), "");
    ExpectTensorRejected(absl::StrCat("'dtype':'F32','shape':[2],'data_offsets':[0,", number, "]"), "");
  }
  ExpectTensorRejected("'dtype':'F32','shape':[02],'data_offsets':[0,8]", "the JSON text is malformed");
}

TEST(SafetensorsHeader, DeepNesting_IsRefusedAtOnce) {
  ExpectRejected("{'w':" + std::string(1'000'000, '['), 0, "an array is not allowed here");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{'w':";
  ExpectRejected(objects, 0, "the field \"w\" is unknown");
}

TEST(SafetensorsHeader, UnknownDtype_IsNamedInTheError) {
  ExpectTensorRejected("'dtype':'F33','shape':[2],'data_offsets':[0,8]",
                       "tensor \"w\": the dtype \"F33\" is unknown");
  ExpectTensorRejected("'dtype':'','shape':[2],'data_offsets':[0,8]", "the dtype \"\" is unknown");
}

TEST(SafetensorsHeader, DataOffsets_MustBeOrderedPair) {
  ExpectTensorRejected("'dtype':'F32','shape':[2],'data_offsets':[]", "[begin, end]");
  ExpectTensorRejected("'dtype':'F32','shape':[2],'data_offsets':[8]", "[begin, end]");
  ExpectTensorRejected("'dtype':'F32','shape':[2],'data_offsets':[0,8,8]",
                       "data_offsets has more than 2 numbers");
  ExpectTensorRejected("'dtype':'F32','shape':[2],'data_offsets':[8,0]", "with begin <= end");
}

TEST(SafetensorsHeader, TensorSize_MustMatchDtypeAndShape) {
  ExpectTensorRejected("'dtype':'F32','shape':[3],'data_offsets':[0,8]",
                       "span 8 bytes, but dtype and shape need 12 bytes");
  ExpectTensorRejected("'dtype':'F32','shape':[4294967296,4294967296],'data_offsets':[0,8]", "64 bits");
  ExpectTensorRejected("'dtype':'F32','shape':[18446744073709551615],'data_offsets':[0,8]", "64 bits");
  ExpectTensorRejected("'dtype':'F4','shape':[15],'data_offsets':[0,8]", "whole bytes");
}

TEST(SafetensorsHeader, TensorData_MustHaveNoHolesOrOverlaps) {
  const auto header = [](std::string_view a, std::string_view b) {
    return absl::StrCat("{'a':{'dtype':'U8','shape':[4],'data_offsets':[", a,
                        "]},'b':{'dtype':'U8','shape':[4],'data_offsets':[", b, "]}}");
  };
  EXPECT_TRUE(ParseSafetensorsHeader(Json(header("0,4", "4,8")), 8).ok());
  ExpectRejected(header("0,4", "5,9"), 9,
                 "tensor \"b\": data_offsets begin at 5 instead of 4: there is a hole");
  ExpectRejected(header("1,5", "5,9"), 9, "tensor \"a\": data_offsets begin at 1 instead of 0");
  ExpectRejected(header("0,4", "3,7"), 7,
                 "tensor \"b\": data_offsets begin at 3 instead of 4: the tensor overlaps");
  ExpectRejected(header("0,4", "0,4"), 4, "overlaps the previous one");
  ExpectRejected(header("0,4", "4,8"), 9, "other bytes follow the tensors");
  ExpectRejected(header("0,4", "4,8"), 7, "truncated");
  ExpectRejected(header("0,4", "18446744073709551611,18446744073709551615"), 8, "hole");
}

TEST(SafetensorsHeader, OversizedSafetensorsHeader_IsRefused) {
  std::string header = "{}";
  header.resize(kMaxSafetensorsHeaderBytes + 1, ' ');
  ExpectRejected(header, 0, "larger than");
  header.pop_back();
  EXPECT_TRUE(ParseSafetensorsHeader(header, 0).ok());
}

TEST(SafetensorsIndex, SafetensorsIndex_ReturnsWeightMapAndIgnoresOtherKeys) {
  const auto index = ParseSafetensorsIndex(
      Json("{'metadata':{'total_size':-1.5e3,'more':[null,{'weight_map':{'x':'y'}},true]},"
           "'weight_map':{'a':'one.safetensors','b':'sub/two.safetensors'},'extra':'text'}"));
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_THAT(index->weight_map,
              UnorderedElementsAre(Pair("a", "one.safetensors"), Pair("b", "sub/two.safetensors")));
}

void ExpectIndexRejected(std::string_view json, std::string_view reason) {
  const auto index = ParseSafetensorsIndex(Json(json));
  ASSERT_EQ(index.status().code(), absl::StatusCode::kInvalidArgument) << json;
  EXPECT_THAT(index.status().message(), HasSubstr(reason)) << json;
}

TEST(SafetensorsIndex, SafetensorsIndex_NeedsOneWeightMapOfStrings) {
  ExpectIndexRejected("", "the JSON text is malformed");
  ExpectIndexRejected("{}", "no weight_map");
  ExpectIndexRejected("{'metadata':{'weight_map':{'a':'b'}}}", "no weight_map");
  ExpectIndexRejected("{'weight_map':{}}", "names no shard");
  ExpectIndexRejected("{'weight_map':{'a':'b'},'weight_map':{'a':'b'}}", "appears twice");
  ExpectIndexRejected("{'weight_map':{'a':'b','a':'b'}}", "tensor \"a\" appears twice");
  ExpectIndexRejected("[]", "an array is not allowed here");
  ExpectIndexRejected("'text'", "a string is not allowed here");
  for (const char* value : {"null", "true", "1", "-1", "1.5", "'b'", "[]", "['b']"}) {
    ExpectIndexRejected(absl::StrCat("{'weight_map':", value, "}"), "weight_map is ");
  }
  for (const char* value : {"null", "true", "1", "-1", "1.5", "['b']", "{'c':'d'}"}) {
    ExpectIndexRejected(absl::StrCat("{'weight_map':{'a':", value, "}}"), "the value of tensor \"a\" is ");
  }
}

TEST(SafetensorsIndex, ShardPath_MustStayInsideTheFolder) {
  for (const char* shard :
       {"", "/etc/shard", "../x", "a/../../x", "a/..", "..", ".", "./x", "a//x", "a/", "a\\u0000b"}) {
    ExpectIndexRejected(absl::StrCat("{'weight_map':{'w':'", shard, "'}}"), "plain path inside");
  }
  EXPECT_TRUE(ParseSafetensorsIndex(Json("{'weight_map':{'w':'..x/a..b'}}")).ok());
}

TEST(SafetensorsIndex, SafetensorsIndex_RefusesDeepNesting) {
  ExpectIndexRejected("{'metadata':" + std::string(1'000'000, '['), "nested deeper");
}

}  // namespace
}  // namespace tensorcast::header_test
