"""Where templates of public models are, and what they hash to: jinja_test.py renders them as Jinja does.

    tests/server/chat/public_templates.py FOLDER REPOSITORY=CLONE...     # copies them into FOLDER
    .venv/bin/python tests/server/chat/jinja_test.py FOLDER

The templates are their owners'. None is in this tree. REPOSITORY is a name of REPOSITORIES, CLONE a local clone of it.
A file *.json holds its template as `chat_template`.
"""

import hashlib
import json
import pathlib
import subprocess
import sys

# Commit, and SHA-256 by path.
REPOSITORIES = {
    "EricLBuehler/mistral.rs": (
        "9e922623f24b32d41f3892b74f0eed18707f4e6c",
        {
            "chat_templates/chatml.json": "153280e3ff55d19da1398bdb3914ee2a51b80429bfaedde11d7d216c39db80f3",
            "chat_templates/deepseek_tool_call.jinja": "eedfb4650069b8cc17d2cfb4230835edaf51539e60e8b051b34d57a35e586dd3",
            "chat_templates/default.json": "474494bccd0913a27390f7aad42cf9a4e75f2344089f0e3a833bf2ab0e7df4da",
            "chat_templates/gemma3n.jinja": "ac03dcb3b09726f1e50ac55ae58fc8d5930eadc3b3a12cb04286dc1d82ac8001",
            "chat_templates/idefics3.json": "0d7e56ca41705b79932de707b22bc855c3cfcefae62f1ac5e458560654883d2e",
            "chat_templates/llama2.json": "e8d5b5a546d3f19df16a5320c614fab05bdc4edd50e850f1afd947b503ea41cf",
            "chat_templates/llama3.json": "ba03a121d097859c7b5b9cd03af99aafe95275210d2876f642ad9929a150f122",
            "chat_templates/mistral.json": "7e995b379ec01747807246483647cd99030abf331653f1119e16d7ac041a3495",
            "chat_templates/mistral_nemo_tool_call.jinja": "b00c099a0f2f0a035ce0d5c77d77d52399693f82744f96b3e00a3cb2332b94ab",
            "chat_templates/mistral_small_tool_call.jinja": "71cb9b4b8bb295f6c34160245e87e9f14e5c26b72f50ffd9ec2c422ff9c59244",
            "chat_templates/nousresearch_hermes2_pro_tool_use.jinja": "ce62e308475b364e1fc76699dccbddeb9ac08344f90d59719dba86a9922834d9",
            "chat_templates/phi3.5.json": "78d976a442bcde2f0be15aafbb8e3050e1104f86732266f68403251b89982a90",
            "chat_templates/phi3.json": "268b6082ceb7176dc6ed80557a2f7837f9f0339592fbee677d405a553af15f88",
            "chat_templates/smollm3.jinja": "3982464ecf49b0b38514fec4a5c22273fe70b7259480735bf13e225e4b64bec2",
            "chat_templates/vicuna.json": "57e4b134d7119cb46f0681fbc657a95e5b5867be7481e3deb52ee6752b6548d4",
        },
    ),
    "axolotl-ai-cloud/axolotl": (
        "067b021c8b87a9e5e380b9173c704cf7340e30f5",
        {
            "src/axolotl/utils/chat_templates/templates/alpaca.jinja": "6457168052f799ccb8dfb1ee61a6f93224a6f78a60d59ab9405975946a3d2998",
            "src/axolotl/utils/chat_templates/templates/aya.jinja": "dae304c0570083890eb60795dc0f7a1fa9605f40ca4f178026401c5e7b581430",
            "src/axolotl/utils/chat_templates/templates/chatml.jinja": "e7a3df47d72feec173403ca6c63b3632edde3536fc0f5a4413ab432a2cfddb8d",
            "src/axolotl/utils/chat_templates/templates/cohere.jinja": "bfdfd991d043004cdd272075d1d5a95fa5814caa7deb44f00e22e4f4ade2d5a7",
            "src/axolotl/utils/chat_templates/templates/command_a.jinja": "5a3fc70a3b0a5f2de1415f822f379cb78610c49f70f94471fe2103042a7a9951",
            "src/axolotl/utils/chat_templates/templates/command_a_rag.jinja": "5a97c55da455bfe7fa915580122e21d03b1bde4af6b937bb3c39fb2eec68c1db",
            "src/axolotl/utils/chat_templates/templates/command_a_tool_use.jinja": "2553c33eeeca87fb4ccc23a759ad50652029bc388c275171329a9878c2cad13d",
            "src/axolotl/utils/chat_templates/templates/deepseek_v2.jinja": "5c73a07f1b9abebd60d2eaf6aec40df0c86a33cc960b0b001a8b5ae61d1a7d1b",
            "src/axolotl/utils/chat_templates/templates/deepseek_v3.jinja": "be3a7a38258ac4556becf758c098f35ae4c14bb104be64ee3400fbf64b68a314",
            "src/axolotl/utils/chat_templates/templates/exaone.jinja": "18a42400137eb6a2b5b9665a32a29390ef20b4694bfeb2eadf622df0a3943747",
            "src/axolotl/utils/chat_templates/templates/exaone4.jinja": "f1e2872a09ecafa482b57f805c4e47fcb1d95a90b46169b2c448847da7a8058e",
            "src/axolotl/utils/chat_templates/templates/falcon_h1.jinja": "b77006662339e0827ad3c9e6b15f4bc69fda334777660b252fa733c0b1779852",
            "src/axolotl/utils/chat_templates/templates/gemma.jinja": "1d096f2ee097e52920f9ccbaddda5a025ec71ad540b5676862e6ba978efdc626",
            "src/axolotl/utils/chat_templates/templates/gemma3.jinja": "f9a34f0fd767baf6e6a990f54ea9189611086350025a1b743afbec62c7d242c8",
            "src/axolotl/utils/chat_templates/templates/gemma3n.jinja": "79f1e32f1a999c490e6a573ce63de56d4616de153cd597b15b3c5ea5ca3612da",
            "src/axolotl/utils/chat_templates/templates/gemma4.jinja": "6502dd0b9faad44efa26f285b14ef7ac580fc055b2fd74f36768c4c96c6081ad",
            "src/axolotl/utils/chat_templates/templates/jamba.jinja": "1337b782f9f34fc01dd147945664c34150140fa56fa99ab48cfefc4954b00778",
            "src/axolotl/utils/chat_templates/templates/llama3.jinja": "e7f0dce6b67524c32dc234d159dd4ce1cc92b74bc0ec905caa1b7765e448259e",
            "src/axolotl/utils/chat_templates/templates/llama3_2_vision.jinja": "1d15fefe6d75e5adaef87d3355c322da000c3710445af7de4c545ae7a9106e9f",
            "src/axolotl/utils/chat_templates/templates/llama4.jinja": "f67cd4a71c0ed36b2e0b24678dd7a39a454d35f17f70079f36b417efc08ddad7",
            "src/axolotl/utils/chat_templates/templates/llava.jinja": "062054e6d1186956a536500783a32da7b2c845035174c462250276c3d49dd776",
            "src/axolotl/utils/chat_templates/templates/metharme.jinja": "533f61020e3dc08f809386d492dc8e8d1a5b5cc0a20fb62cba64b7c7d0aa9175",
            "src/axolotl/utils/chat_templates/templates/mistral_v1.jinja": "6757558eb58d2df189712a697cd28d8f77ba53142c2c51136632736ff5e0e40a",
            "src/axolotl/utils/chat_templates/templates/mistral_v2v3.jinja": "a2a37622b263c675745fdfac04fccc35f2e187bd0dee26abdfa0c2bf03841adb",
            "src/axolotl/utils/chat_templates/templates/mistral_v3_tekken.jinja": "5d73b7eebd0d38168b7a59fec462efa5aebb0dd3ddb4e9e8ffa5b53c51dff719",
            "src/axolotl/utils/chat_templates/templates/mistral_v7_tekken.jinja": "848b4e6befdfcf887467dd882616b343433e8b2a2ccb4375274e4a29679ea709",
            "src/axolotl/utils/chat_templates/templates/nemotron_h.jinja": "dc70d326d3981e55641a89823235a3e296d8ca45e13c37939d87263f67459255",
            "src/axolotl/utils/chat_templates/templates/phi_3.jinja": "f10b966738c6926071e76474228b2d7f569da8d699a392e73d4215a09ebbc9c4",
            "src/axolotl/utils/chat_templates/templates/phi_35.jinja": "b3f0359472749f3817f919bfffd6fbb14fbfc69ff4325fb6bd91cbea6d3034e3",
            "src/axolotl/utils/chat_templates/templates/phi_4.jinja": "2d6bc7dbce0430a22cbb7dddbb496c7c39fc10074933b12ce04711392b1075ca",
            "src/axolotl/utils/chat_templates/templates/pixtral.jinja": "59ca9f1a8cb86da1e30b88c11832fedd27f5896b3abda726779bbc726cc66919",
            "src/axolotl/utils/chat_templates/templates/qwen2_vl.jinja": "aaf381d167b6ecc234debecac3bff63439af2a2477f82b99f63aa9bce1330eeb",
            "src/axolotl/utils/chat_templates/templates/qwen3.jinja": "8a7de74d0cb8060fae0f830aa16cee5f35aa8ba07bfb3f3a06290ff4aae90849",
            "src/axolotl/utils/chat_templates/templates/qwen3_5.jinja": "070c6460faeaed2b96a4842c6a6c1ad7d0c108924a0b117dc13c35ff6992f8ae",
            "src/axolotl/utils/chat_templates/templates/qwen_25.jinja": "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f",
        },
    ),
    "chujiezheng/chat_templates": (
        "11c495621569969f264ee70b5c8bb49ba7a1a410",
        {
            "chat_templates/alpaca.jinja": "c809acafb5915672fe8db9b3970cd691a63c24f971e39b6ce03e8fec42ea6ff4",
            "chat_templates/amberchat.jinja": "a4002ce905c568c2890306915744fb4eaa77d90118b8563abbf7c4c8c7d8194d",
            "chat_templates/chatml.jinja": "81a800d52014500ed43923f335cdf7a40c6cb2f54ce368ba39eeba97e6d908cc",
            "chat_templates/chatqa.jinja": "ceaa937bdcc6c18f7db605956e1e26f6d9dfba3dff41ac72d6bcc8ff9db4f9e5",
            "chat_templates/falcon-instruct.jinja": "2ea58abc12c20011007b1146bd46d65ad293c72a8ab145de06ef146b00b03c6e",
            "chat_templates/gemma-it.jinja": "4756ecd3b16b636641d3d6284f5ee0ca580380d94314912c5102ce7bb35d18fb",
            "chat_templates/granite-3.0-instruct.jinja": "d7f1fa46794895c5fbb06265fb87e938a232c498d01d815ac9a8752c0583f9b6",
            "chat_templates/llama-2-chat.jinja": "08361df082b3697050d8b96a82167be31ada85c9c570e009b9680f3d869ac396",
            "chat_templates/llama-3-instruct.jinja": "e64b9d1edb772d59e4cc4f692ba4a33be1d4382ec4890c6bf7cdbb46c99dff21",
            "chat_templates/mistral-instruct.jinja": "66cab0fd568c720ac6e014e6f883ab4c6b8b76478cdb5f3c7bc367d27bcaff99",
            "chat_templates/openchat-3.5.jinja": "b331cc81802983120d2956a9d39b3a61541ece483a950fcece600e94c5485ee4",
            "chat_templates/phi-3-small.jinja": "0834a087ccf401a67f5fe6de834ce31a9fe6698815a2fee314622ced10fb9fa9",
            "chat_templates/phi-3.jinja": "fc5a9b106e9efefb9e6c403d2e92d9f1d0614401bbe0cf39a7b1f43bd08d558d",
            "chat_templates/qwen2.5-instruct.jinja": "ff3042c0f32a50b9a48604b484daf3934aafa5626acb4bc183ce5f2e102faef6",
            "chat_templates/saiga.jinja": "abf1dd07919b7017c351e19d4c2803fd08d21382efa6343357642c1d8d9db26e",
            "chat_templates/solar-instruct.jinja": "97dd53bd17997077cedaad629d48cf1966e5ecd4d530201a9b1769e37e4e3fea",
            "chat_templates/vicuna.jinja": "4048b56ec9ccc441161918f8c992d606d1c50b4f728a33d1bcd9aaeed88f7c66",
            "chat_templates/zephyr.jinja": "a41f4cf24c71ac63554ca7c46efee71e70e1e04c7e22fe3e17c65411c90d36cc",
        },
    ),
    "ikawrakow/ik_llama.cpp": (
        "8337e4cd3861406fc04e0854b1409cd1b027fbc9",
        {
            "models/templates/Apertus-8B-Instruct.jinja": "dea688e9f24a339a0d2504f6840852adbcedb082373172a0b82ca2c55996768d",
            "models/templates/Apriel-1.6-15b-Thinker-fixed.jinja": "2f5ce4b3c1e0ab30fc5f204a151aba5ee584615b0aa641afc2d58bcccfe33bdb",
            "models/templates/Bielik-11B-v3.0-Instruct.jinja": "a30b8c4531dda19196f35fb95ab84110dd8357acbd75eea3776c5543a70db5a9",
            "models/templates/ByteDance-Seed-OSS.jinja": "3f9e0dc4adeb8032287d0129dc75b6298fee8698a52ab41e863dbc89929330d3",
            "models/templates/Cohere2MoE.jinja": "d8366efb9f07c571da620ce6a924594fc52c80273a0fbb46a38b643972df95fd",
            "models/templates/CohereForAI-c4ai-command-r-plus-tool_use.jinja": "bf9e9ee8c0f2297c6ff60af5fab357d7b34bc4375884ed16ab6aa90597d7eb7d",
            "models/templates/CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja": "cc60b553279347d83df761f5dc55b4b2fb66bc1fa9a33e219911c13c11552fac",
            "models/templates/GLM-4.6.jinja": "f777778f775abe19c0f4bd576078d20a51ba8472139bde6852ea4490ec07398b",
            "models/templates/GLM-4.7-Flash.jinja": "d63ad536c3c81880043e22ec7fd08db42b4d8fb7c89c7138bc562bfa25281375",
            "models/templates/GLM-5.2.jinja": "6d172cae09cb494bd825a6b14d07e7b32a2c26988afe43d8bc2bbda91aab99c8",
            "models/templates/GigaChat3-10B-A1.8B.jinja": "bbbf2de800b645dfe032b1d85e1d6479d78fd82d38d4af0d8d5bb2dacacd20d6",
            "models/templates/GigaChat3.1-10B-A1.8B.jinja": "304f0d64aa3ba30ee85c281befdeb0e5b32aed232b06dee1752310daa1208a4b",
            "models/templates/HuggingFaceTB-SmolLM3-3B.jinja": "19eacf64569032f07644ea92c8e2a87af06ee7008147557302c31e474912ca97",
            "models/templates/Kimi-K2-Instruct.jinja": "1d396d5b128cdb9b2a4ef73434fa08d31c75604a11daa77bcb4b622d32dddd41",
            "models/templates/Kimi-K2-Thinking.jinja": "2f6c593d50682612ccc3229f043ecd1bdeb5a32fdfe86ca2158203a61d885817",
            "models/templates/LFM2-8B-A1B.jinja": "2294f49b51a0b9a1b0194add3f124237b5bd986599f43180eec49bba4de01365",
            "models/templates/LFM2.5-Instruct.jinja": "f05bf4b967dc993bdc7a2fe6e43759ee218eb0eb340d68b063e1c4f8ad148176",
            "models/templates/MiMo-VL.jinja": "10490379c20af484107413cc5fd93f6e587d0cb4364a183a89ab68849406b80d",
            "models/templates/MiroThinker.jinja": "8544f7729994ba0609dbbcb8e43c7e5ec351ea4b1d20f4a512cb929c2c2f2d48",
            "models/templates/Mistral-Small-3.2-24B-Instruct-2506.jinja": "5b8f31f11198696548d544dbe424a3c1ef244d00a475f4e1bffb351fda085608",
            "models/templates/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.jinja": "ab7813c3abdd9cb655905a410728b26c7884eca45ddfab8d9f931553485a7862",
            "models/templates/NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja": "7ce09d55d3690e06c70b5c07228cc7e8c99c43a23cdc027762be4011efcdea6c",
            "models/templates/Qwen-QwQ-32B.jinja": "5ed15374ce53e19a7798710736a2c9fe41c79f7385e8421a2080d6575a80ef1b",
            "models/templates/Qwen-Qwen3-0.6B.jinja": "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5",
            "models/templates/Qwen3-Coder.jinja": "d287fb2edf144207f868ae1b282755dc19db2a3f1c5b3a3d57e9e5abffa98392",
            "models/templates/Qwen3.5-4B.jinja": "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715",
            "models/templates/Reka-Edge.jinja": "546b04dba74993efae8f9da3ba08e29f437f5ac3f4e40b5cb9a4de5901a841df",
            "models/templates/StepFun3.5-Flash.jinja": "b18b99dff7261214c43e0402cba9f573e3240be6f9bb7ccaa54bb8df97e49dca",
            "models/templates/deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja": "dd2675619a64a449cdcdd2b93e605a0a50764cee41e344f244752bc93643936c",
            "models/templates/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja": "bbe594884b44d740667ee65a70bc8d333a565eab3d63ea59f291ea73ada84ba6",
            "models/templates/deepseek-ai-DeepSeek-V3.1.jinja": "d9f5f351b276cf9e81d009db08830db7d38e94927aecd09a7beb43e2aafee94e",
            "models/templates/deepseek-ai-DeepSeek-V3.2.jinja": "8e5a13fcc4bdd4d943311fc59064b805770fdeddfccbd7f1c252cc16e8acaf3d",
            "models/templates/deepseek-ai-DeepSeek-V4.jinja": "c69cd3cf0bd77bcfe962214042af8db1ae6b8b01f4db81f082c83dff925775d7",
            "models/templates/fireworks-ai-llama-3-firefunction-v2.jinja": "fcb749f5c5d6bbc4240db4e86af5dfcefe9c7e85355235d0f304ab4319ba6b51",
            "models/templates/google-gemma-2-2b-it.jinja": "ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6",
            "models/templates/google-gemma-4-31B-it-interleaved.jinja": "65f93a25708c952457106a30e185ba7beffddd726121c8d7e3f3e08b23c16c67",
            "models/templates/google-gemma-4-31B-it.jinja": "85a08664d16d8f3be4416c92427b3ac10df1024ac566cc0b4bc3bab409393f98",
            "models/templates/ibm-granite-granite-3.3-2B-Instruct.jinja": "3c71df5f659987462c882bf9e295b597dc19902467a7312ea382c5896681bc02",
            "models/templates/llama-cpp-deepseek-r1.jinja": "0d11fd8d7cf3f212733d73dfe09ead89a14a18816661dc30ea1fb3147428fba1",
            "models/templates/llama-cpp-rwkv-world.jinja": "e70723034f0928096207d99b2ec4678950361f290f5341c017d957f88b196935",
            "models/templates/meetkai-functionary-medium-v3.1.jinja": "2fc9dbfaea552f864b4b8cdf9d17401e9a49cbda199498531f137eb0ec5ae1d8",
            "models/templates/meetkai-functionary-medium-v3.2.jinja": "5c7c96c27cfecf3418411d1ebd0d11d691ab6bd2155bb38dacc62250fe47c3c8",
            "models/templates/meta-llama-Llama-3.1-8B-Instruct.jinja": "e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65",
            "models/templates/meta-llama-Llama-3.2-3B-Instruct.jinja": "5816fce10444e03c2e9ee1ef8a4a1ea61ae7e69e438613f3b17b69d0426223a4",
            "models/templates/mistralai-Ministral-3-14B-Reasoning-2512.jinja": "39f03c383413f531fd302c06c7e982ad98c83f0657a8339ae25478ccb81fdcda",
            "models/templates/mistralai-Mistral-Nemo-Instruct-2407.jinja": "e4676cb56dffea7782fd3e2b577cfaf1e123537e6ef49b3ec7caa6c095c62272",
            "models/templates/moonshotai-Kimi-K2.jinja": "9fcc72b7c248a72020c81f70bb652f3094d18a750c93ca35dfcb3cf5fe23ff53",
            "models/templates/openai-gpt-oss-120b.jinja": "a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146",
            "models/templates/unsloth-Apriel-1.5.jinja": "fae87682d3551b1cd3191fc92c5372c230e6e90115a98f049e35218cf4e13d8f",
            "models/templates/unsloth-mistral-Devstral-Small-2507.jinja": "039a4710e2aabaa79e85a233fa3daa4fbc030a4a8dc218cb7f34fb0c4b8c13b1",
        },
    ),
}


def copy(repository, clone, folder):
    commit, files = REPOSITORIES[repository]
    for path, expected in files.items():
        text = subprocess.run(["git", "-C", clone, "show", f"{commit}:{path}"], check=True, capture_output=True).stdout.decode()
        if path.endswith(".json"):
            text = json.loads(text)["chat_template"]
        found = hashlib.sha256(text.encode()).hexdigest()
        if found != expected:
            sys.exit(f"{repository}: {path}: expected SHA-256 {expected}, found {found}")
        name = f"{repository.split('/')[1]}__{pathlib.Path(path).stem}.jinja"
        (folder / name).write_text(text, newline="")


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for argument in sys.argv[2:]:
        repository, clone = argument.split("=", 1)
        copy(repository, clone, folder)


if __name__ == "__main__":
    main()
