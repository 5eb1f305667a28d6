// SPDX-License-Identifier: Apache-2.0
//
// romou.h for Java and Kotlin: the native functions of dev.romou.Model. Tensors are direct byte buffers, so that nothing is copied on the way.
#include <jni.h>

#include <cstdint>
#include <vector>

#include "romou.h"

namespace {

/// Throw dev.romou.ModelException unless `status` is ROMOU_OK. Return whether it is.
bool check(JNIEnv* env, romou_status status) {
  if (status == ROMOU_OK) return true;
  // The text may hold any bytes; NewStringUTF takes UTF-8 of Java's kind only.
  char text[1024];
  size_t length = 0;
  for (const char* from = romou_error(); *from != '\0' && length + 1 < sizeof text; ++from) text[length++] = static_cast<unsigned char>(*from) < 0x80 ? *from : '?';
  text[length] = '\0';
  const jclass type = env->FindClass("dev/romou/ModelException");
  if (type == nullptr) return false;  // the JVM throws its own error
  const jmethodID constructor = env->GetMethodID(type, "<init>", "(ILjava/lang/String;)V");
  const jstring message = env->NewStringUTF(text);
  if (constructor != nullptr && message != nullptr) env->Throw(static_cast<jthrowable>(env->NewObject(type, constructor, static_cast<jint>(status), message)));
  return false;
}

/// A Java string as UTF-8, or null.
class Text {
 public:
  Text(JNIEnv* env, jstring from) : env_(env), from_(from), text_(from == nullptr ? nullptr : env->GetStringUTFChars(from, nullptr)) {}
  ~Text() {
    if (text_ != nullptr) env_->ReleaseStringUTFChars(from_, text_);
  }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;
  operator const char*() const { return text_; }

 private:
  JNIEnv* env_;
  jstring from_;
  const char* text_;
};

romou_model* model_of(jlong handle) { return reinterpret_cast<romou_model*>(handle); }

romou_status tensor_of(jlong handle, jboolean is_input, jint index, romou_tensor* tensor) {
  return (is_input ? romou_input : romou_output)(model_of(handle), static_cast<size_t>(index), tensor);
}

}  // namespace

extern "C" {

JNIEXPORT jlong JNICALL Java_dev_romou_Model_open(JNIEnv* env, jclass, jstring folder, jstring variant, jstring programs) {
  const Text folder_text(env, folder), variant_text(env, variant), programs_text(env, programs);
  const romou_options options{variant_text, programs_text};
  romou_model* model = nullptr;
  check(env, romou_open(folder_text, &options, &model));
  return reinterpret_cast<jlong>(model);
}

JNIEXPORT void JNICALL Java_dev_romou_Model_close(JNIEnv*, jclass, jlong handle) { romou_close(model_of(handle)); }

JNIEXPORT jint JNICALL Java_dev_romou_Model_count(JNIEnv*, jclass, jlong handle, jboolean is_input) {
  return static_cast<jint>((is_input ? romou_input_count : romou_output_count)(model_of(handle)));
}

JNIEXPORT jobjectArray JNICALL Java_dev_romou_Model_names(JNIEnv* env, jclass, jlong handle, jboolean is_input, jint index) {
  romou_tensor tensor;
  if (!check(env, tensor_of(handle, is_input, index, &tensor))) return nullptr;
  const jobjectArray names = env->NewObjectArray(2, env->FindClass("java/lang/String"), nullptr);
  if (names == nullptr) return nullptr;
  env->SetObjectArrayElement(names, 0, env->NewStringUTF(tensor.name));
  env->SetObjectArrayElement(names, 1, env->NewStringUTF(tensor.stored));
  return names;
}

JNIEXPORT jlongArray JNICALL Java_dev_romou_Model_sizes(JNIEnv* env, jclass, jlong handle, jboolean is_input, jint index) {
  romou_tensor tensor;
  if (!check(env, tensor_of(handle, is_input, index, &tensor))) return nullptr;
  const jsize rank = static_cast<jsize>(tensor.rank);
  const jlongArray sizes = env->NewLongArray(rank + 1);
  if (sizes == nullptr) return nullptr;
  const jlong bytes = static_cast<jlong>(tensor.bytes);
  env->SetLongArrayRegion(sizes, 0, 1, &bytes);
  for (jsize axis = 0; axis < rank; ++axis) {
    const jlong side = tensor.shape[axis];
    env->SetLongArrayRegion(sizes, axis + 1, 1, &side);
  }
  return sizes;
}

JNIEXPORT void JNICALL Java_dev_romou_Model_set(JNIEnv* env, jclass, jlong handle, jstring input, jobject buffer) {
  const Text name(env, input);
  check(env, romou_set(model_of(handle), name, env->GetDirectBufferAddress(buffer), static_cast<size_t>(env->GetDirectBufferCapacity(buffer))));
}

JNIEXPORT void JNICALL Java_dev_romou_Model_reshape(JNIEnv* env, jclass, jlong handle, jstring input, jlongArray shape) {
  const Text name(env, input);
  std::vector<jlong> sides(static_cast<size_t>(env->GetArrayLength(shape)));
  env->GetLongArrayRegion(shape, 0, static_cast<jsize>(sides.size()), sides.data());
  const std::vector<int64_t> given(sides.begin(), sides.end());
  check(env, romou_reshape(model_of(handle), name, given.data(), given.size()));
}

JNIEXPORT void JNICALL Java_dev_romou_Model_run(JNIEnv* env, jclass, jlong handle) { check(env, romou_run(model_of(handle))); }

JNIEXPORT void JNICALL Java_dev_romou_Model_get(JNIEnv* env, jclass, jlong handle, jstring output, jobject buffer) {
  const Text name(env, output);
  check(env, romou_get(model_of(handle), name, env->GetDirectBufferAddress(buffer), static_cast<size_t>(env->GetDirectBufferCapacity(buffer))));
}

JNIEXPORT jstring JNICALL Java_dev_romou_Model_about(JNIEnv* env, jclass, jlong handle) { return env->NewStringUTF(romou_about(model_of(handle))); }

}  // extern "C"
