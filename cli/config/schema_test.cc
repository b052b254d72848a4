#include "cli/config/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "cli/config/config.h"

namespace tensorcast::config::schema_test {
namespace {

using ::testing::HasSubstr;

// A key by its path in the configuration.
const google::protobuf::FieldDescriptor& Key(std::string_view section, const std::string& key) {
  const auto* message = v1::Config::descriptor()->FindFieldByName(std::string(section))->message_type();
  const auto* field = message->FindFieldByName(key);
  return *field;
}

void ExpectGood(const google::protobuf::FieldDescriptor& key, std::initializer_list<std::string_view> texts) {
  for (const std::string_view text : texts) {
    EXPECT_TRUE(CheckText(key, text).ok()) << key.full_name() << ": " << text;
  }
}
void ExpectBad(const google::protobuf::FieldDescriptor& key, std::initializer_list<std::string_view> texts,
               const std::string& expected) {
  for (const std::string_view text : texts) {
    const absl::Status status = CheckText(key, text);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << key.full_name() << ": " << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected)) << text;
  }
}

TEST(Schema, EachValueFormat_AcceptsValidAndExplainsInvalidValues) {
  ExpectGood(Key("daemon", "host_pool"), {"64GiB", "1.5MiB", "1"});
  ExpectBad(Key("daemon", "host_pool"), {"much", "-1GiB"}, "is not a size");
  ExpectGood(Key("daemon", "peer_timeout"), {"1ms", "1h30m", "365d"});
  ExpectBad(Key("daemon", "peer_timeout"), {"999us", "366d"}, "is not between 1ms and 365d");
  ExpectGood(Key("global_store", "listen"), {"unix:/run/s", "a:0", "[::]:7000"});
  ExpectBad(Key("global_store", "listen"), {"a", "a:"}, "host:port");
  ExpectGood(Key("daemon", "listen"), {"0.0.0.0:7001", ""});
  ExpectBad(Key("daemon", "listen"), {"unix:/run/s"}, "see daemon.unix_socket");
  ExpectGood(Key("daemon", "advertise"), {"node-a:0", "10.0.0.1:7001"});
  ExpectBad(Key("daemon", "advertise"), {"0.0.0.0:1", "[::]:1"},
            "give the address that other hosts connect to");
  ExpectGood(Key("client", "daemon"), {"unix:/run/d", "a:7001"});
  ExpectBad(Key("client", "daemon"), {"a:0"}, "port 0 cannot be connected to");
  ExpectGood(Key("daemon", "unix_socket"), {"/run/d"});
  ExpectBad(Key("daemon", "unix_socket"), {"/" + std::string(107, 'x')}, "has 108 bytes");
}

TEST(Schema, NumbersAndChoices_AreCheckedAgainstTheirLimits) {
  ExpectGood(Key("daemon", "fake_devices"), {"1", "64"});
  ExpectBad(Key("daemon", "fake_devices"), {"0", "65", "one"}, "is not a whole number from 1 to 64");
  ExpectGood(Key("log", "level"), {"info", "warning", "error"});
  ExpectBad(Key("log", "level"), {"INFO", "loud"}, "is not one of info, warning, error");
}

// Where nothing is a value, it stands for what the help says; elsewhere the key is left out for the default.
TEST(Schema, EmptyValue_IsAllowedOnlyWhereDefaultIsEmpty) {
  ExpectGood(Key("daemon", "device_pool"), {""});
  ExpectGood(Key("daemon", "name"), {"", "any text at all"});
  ExpectBad(Key("daemon", "host_pool"), {""}, "leave the key out to have the default");
}

TEST(Schema, Help_EndsWithAllowedValues) {
  EXPECT_THAT(HelpOf(Key("daemon", "host_pool")), ::testing::EndsWith(" [a size, such as 64GiB]"));
  EXPECT_THAT(HelpOf(Key("daemon", "fake_devices")), ::testing::EndsWith(" [1 to 64]"));
  EXPECT_THAT(HelpOf(Key("daemon", "handle_groups")), ::testing::EndsWith(" [a list]"));
  EXPECT_EQ(HelpOf(Key("global_store", "metadata_path")), "Path of the SQLite database file");
}

TEST(Schema, StateFolder_IsInsertedIntoDefaults) {
  const v1::Config config = DefaultsWith("/somewhere");
  EXPECT_EQ(config.daemon().state_dir(), "/somewhere");
  EXPECT_EQ(config.global_store().listen(), "unix:/somewhere/global_store.sock");
  EXPECT_EQ(config.global_store().metadata_path(), "/somewhere/global_store.db");
}

// Every key of a section and of those below it.
void ForEachKey(const google::protobuf::Descriptor& section,
                const std::function<void(const google::protobuf::FieldDescriptor&)>& visit) {
  for (int i = 0; i < section.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *section.field(i);
    field.message_type() != nullptr ? ForEachKey(*field.message_type(), visit) : visit(field);
  }
}

TEST(Schema, EveryKey_HasHelpAndEveryNumberLimits) {
  int keys = 0;
  ForEachKey(*v1::Config::descriptor(), [&](const google::protobuf::FieldDescriptor& field) {
    ++keys;
    EXPECT_TRUE(field.options().HasExtension(v1::key)) << field.full_name();
    EXPECT_NE(KeyOf(field).help(), "") << field.full_name();
    const bool number = field.cpp_type() == field.CPPTYPE_INT32 || field.cpp_type() == field.CPPTYPE_DOUBLE;
    EXPECT_TRUE(number || field.cpp_type() == field.CPPTYPE_STRING || field.cpp_type() == field.CPPTYPE_BOOL)
        << field.full_name();
    EXPECT_TRUE(!field.is_repeated() || field.cpp_type() == field.CPPTYPE_STRING) << field.full_name();
    if (number) {
      EXPECT_NE(KeyOf(field).min(), "") << field.full_name();
      EXPECT_NE(KeyOf(field).max(), "") << field.full_name();
    }
  });
  EXPECT_GT(keys, 60);
}

TEST(Schema, EveryDefault_IsValidForItsKey) {
  ForEachKey(*v1::Config::descriptor(), [&](const google::protobuf::FieldDescriptor& field) {
    const std::string& value = KeyOf(field).default_value();
    if (value.empty() || field.is_repeated() || value.find("$STATE") != std::string::npos) return;
    EXPECT_TRUE(CheckText(field, value).ok()) << field.full_name() << CheckText(field, value);
  });
  const v1::Config defaults = Defaults();
  for (const std::string& lane : defaults.daemon().lanes()) {
    EXPECT_TRUE(CheckText(*v1::DaemonConfig::descriptor()->FindFieldByName("lanes"), lane).ok());
  }
}

}  // namespace
}  // namespace tensorcast::config::schema_test
