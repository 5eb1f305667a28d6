package dev.romou

import java.nio.ByteBuffer
import java.nio.ByteOrder

/** What went wrong: `code` is one of romou_status in romou.h. */
class ModelException(val code: Int, message: String) : RuntimeException(message)

/** An input or an output. `dtype` is the type of the numbers in its buffer. */
class Tensor(val name: String, val dtype: String, sides: LongArray, val bytes: Int) {
    val shape = sides.toList()
}

/** The functions of jni.cc, which makes tensors and exceptions. */
internal object Native {
    init { System.loadLibrary("romou_jni") }
    fun buffer(bytes: Int): ByteBuffer = ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder())
    @JvmStatic external fun open(folder: String, variant: String?, programs: String?): Long
    @JvmStatic external fun close(handle: Long)
    @JvmStatic external fun tensors(handle: Long, isInput: Boolean): Array<Tensor>
    @JvmStatic external fun set(handle: Long, input: String, buffer: ByteBuffer)
    @JvmStatic external fun reshape(handle: Long, input: String, shape: LongArray)
    @JvmStatic external fun run(handle: Long)
    @JvmStatic external fun get(handle: Long, output: String, buffer: ByteBuffer)
    @JvmStatic external fun decode(handle: Long, tokens: LongArray): Long
    @JvmStatic external fun rewind(handle: Long, count: Long)
    @JvmStatic external fun about(handle: Long): String
}
